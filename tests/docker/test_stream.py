"""The engine's packing is taken off a stream, however it is cut; the pool's rules, with containers that are none."""

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.docker import DockerSandbox
from palaestra.envs.sandboxes.docker import pool as room
from palaestra.envs.sandboxes.docker.containers import Container
from palaestra.envs.sandboxes.docker.pool import ContainerPool
from palaestra.envs.sandboxes.docker.stream import AttachStream
from palaestra.errors import Broken, UsageError


def packed(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(data)) + data


@contextlib.contextmanager
def pair() -> Iterator[tuple[AttachStream, socket.socket]]:
    near, far = socket.socketpair()
    stream = AttachStream(near.detach())
    try:
        yield stream, far
    finally:
        stream.end()
        far.close()


@settings(max_examples=50)
@given(
    parts=st.lists(st.tuples(st.sampled_from((1, 2)), st.binary(max_size=40)), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    size=st.integers(1, 50),
)
def test_what_was_written_comes_out_in_order_and_complete(
    parts: list[tuple[int, bytes]], cuts: list[int], size: int
) -> None:
    sent = b"".join(packed(kind, data) for kind, data in parts)
    with pair() as (stream, far):
        stream.setblocking(False)
        received = b""
        edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
        for first, last in itertools.pairwise(edges):
            far.sendall(sent[first:last])
            with contextlib.suppress(BlockingIOError):
                while piece := stream.recv(size):
                    received += piece
        assert received == b"".join(data for kind, data in parts if kind == 1)
        assert (
            stream.error_text.encode()
            == b"".join(data for kind, data in parts if kind == 2).decode(errors="replace").strip().encode()
        )
        far.shutdown(socket.SHUT_WR)
        assert stream.recv(1) == b""


class Farm:
    """Makes and ends containers that are only sockets."""

    def __init__(self) -> None:
        self.alive: dict[str, socket.socket] = {}
        self.made = 0

    def launch(self, limits: Limits) -> Container:
        near, far = socket.socketpair()
        self.made += 1
        name = f"{self.made}"
        self.alive[name] = far
        return Container(name, AttachStream(near.detach()))

    def end(self, container: Container) -> None:
        self.alive.pop(container.identity).close()


@contextlib.contextmanager
def pool(max_containers: int = 64, warm: int = 0) -> Iterator[tuple[Farm, ContainerPool]]:
    farm = Farm()
    made = ContainerPool(farm.launch, farm.end, Limits(), max_containers=max_containers, warm=warm)
    try:
        yield farm, made
    finally:
        made.close()
        assert farm.alive == {}


def until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_spare_containers_are_made_before_anybody_waits() -> None:
    with pool(warm=2) as (farm, made):
        made.add(farm.launch(Limits()))
        until(lambda: farm.made == 2)
        first = made.take(fresh=True)
        until(lambda: farm.made == 3)
        made.discard(first)
        until(lambda: len(farm.alive) == 2)


def test_a_used_container_goes_to_one_shot_runs_only() -> None:
    with pool() as (_, made):
        one = made.take(fresh=False)
        made.give_back(one)
        two = made.take(fresh=True)
        assert two is not one
        assert made.take(fresh=False) is one


def test_a_container_that_was_being_made_when_the_pool_closed_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pool() as (farm, made):
        going, closed, launch = threading.Event(), threading.Event(), made._launch

        def slow(limits: Limits) -> Container:
            going.set()
            assert closed.wait(60)
            return launch(limits)

        monkeypatch.setattr(made, "_launch", slow)
        with ThreadPoolExecutor() as threads:
            taken = threads.submit(made.take, fresh=True)
            assert going.wait(60)
            made.close()
            closed.set()
            with pytest.raises(UsageError, match="closed meanwhile"):
                taken.result()
        assert farm.made == 1


def test_a_container_for_a_caller_that_is_gone_with_its_loop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pool() as (farm, made):
        going, gone, launch = threading.Event(), threading.Event(), made._launch
        sandbox = object.__new__(DockerSandbox)
        sandbox._pool = made

        def slow(limits: Limits) -> Container:
            going.set()
            assert gone.wait(60)
            return launch(limits)

        async def leave() -> None:
            asyncio.create_task(sandbox._taken(True, None, False))  # noqa: RUF006  (it is cancelled with the loop)
            assert await asyncio.to_thread(going.wait, 60)
            threading.Timer(0.2, gone.set).start()

        monkeypatch.setattr(made, "_launch", slow)
        asyncio.run(leave())
        until(lambda: farm.alive == {})
        assert not made._taken


def test_there_are_never_too_many_and_whoever_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WAIT_SECONDS", 0.2)
    with pool(max_containers=2) as (farm, made):
        one, two = made.take(fresh=True), made.take(fresh=False)
        assert made.take_ready(fresh=False) is None
        with pytest.raises(Broken, match="all 2 containers"):
            made.take(fresh=True)
        monkeypatch.setattr(room, "WAIT_SECONDS", 60.0)
        threading.Timer(0.05, made.discard, [one]).start()
        three = made.take(fresh=True)
        made.give_back(two)
        assert made.take(fresh=True) not in (one, two, three), "a session evicts what waits for one-shot runs"
        assert farm.made == 4
        made.close()
        made.close()
        made.discard(three)
        with pytest.raises(UsageError, match="closed"):
            made.take(fresh=False)


def test_an_old_container_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_AGE_SECONDS", 0.05)
    with pool() as (farm, made):
        one = made.take(fresh=False)
        made.give_back(one)
        time.sleep(0.1)
        assert made.take(fresh=False) is not one
        until(lambda: one.identity not in farm.alive)


def test_a_container_that_spoke_out_of_turn_is_not_used() -> None:
    with pool() as (farm, made):
        one = made.take(fresh=False)
        made.give_back(one)
        farm.alive[one.identity].sendall(packed(1, b"forged reply"))
        assert made.take(fresh=False) is not one


def test_a_launch_that_fails_leaves_room() -> None:
    farm = Farm()

    def fail(limits: Limits) -> Container:
        raise Broken("no room")

    made = ContainerPool(fail, farm.end, Limits(), max_containers=1, warm=0)
    for _ in range(3):
        with pytest.raises(Broken, match="no room"):
            made.take(fresh=True)
    made.close()
