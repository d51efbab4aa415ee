"""Runner: what was given up stays given up, and a lost thread costs no later call its place."""

import asyncio
import gc
import os
import threading
import time

import pytest

from palaestra.envs import tool
from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.tool import collect
from palaestra.envs.running import crew
from palaestra.envs.running.inbox import Inbox, Turn
from palaestra.envs.running.runner import Runner, take_turn
from palaestra.episode import Status

PATIENCE = 60
"""Seconds that anything may take which a busy machine does late."""


class Stubborn:
    """Tools that come back long after nobody wants them."""

    def __init__(self):
        self.gate = threading.Event()
        self.ignoring = threading.Event()
        self.cancelled = threading.Event()

    @tool(blocking=True, timeout=0.05)
    def hang(self) -> str:
        """Waits for the gate."""
        self.gate.wait(PATIENCE)
        return "late"

    @tool(timeout=0.05)
    async def ignore(self) -> str:
        """Answers although it was cancelled."""
        self.ignoring.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.cancelled.set()
        return "late"

    @tool(blocking=True, timeout=2 * PATIENCE)
    def quick(self) -> str:
        """Answers."""
        return "here"

    @tool(blocking=True, timeout=2 * PATIENCE)
    def stay(self) -> str:
        """Waits for the gate, and has the time to."""
        self.gate.wait(PATIENCE)
        return "at last"

    @tool(timeout=2 * PATIENCE)
    async def linger(self) -> str:
        """Waits for what never comes."""
        await asyncio.Event().wait()
        return "never"

    @tool
    async def interrupt(self) -> str:
        """Raises what would end a loop."""
        raise KeyboardInterrupt("by the tool")


def turn_of(owner, *names, inbox=None):
    tools = collect(Stubborn)
    inbox = inbox or Inbox("world")
    return Turn(0, [Prepared(name, tool=tools[name], owner=owner) for name in names], inbox), inbox


def becomes(found):
    """Wait until this is so; whether it is."""
    until = time.monotonic() + PATIENCE
    while not found() and time.monotonic() < until:
        time.sleep(0.001)
    return found()


def given_up(runner, owner, name, begun=None):
    turn, inbox = turn_of(owner, name)
    runner.start((turn,))
    assert begun is None or begun.wait(PATIENCE), "a call that never began would not be cancelled"
    news, late = inbox.wait(time.monotonic() + PATIENCE)
    assert (list(news), late) == ([], turn.jobs[0])
    runner.abandon(turn)
    return turn, inbox


def test_a_late_result_reaches_nobody():
    runner, owner = Runner(1), Stubborn()
    turn, inbox = given_up(runner, owner, "ignore", owner.ignoring)
    assert owner.cancelled.wait(PATIENCE)
    later, _ = turn_of(owner, "interrupt", inbox=inbox)  # It comes in behind it: they share the loop.
    runner.start((later,))
    assert inbox.wait(time.monotonic() + PATIENCE) == ([later], None)
    assert turn.calls == []
    runner.close()


def test_turns_that_are_over_leave_nothing_to_the_garbage_collector():
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=Stubborn())]
    take_turn("world", 0, prepared)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2000):
            take_turn("world", 0, prepared)
        assert gc.collect() < 1000  # A loop of another test's that ends meanwhile leaves a hundred things.
    finally:
        gc.enable()


def test_a_lost_thread_is_written_off_once():
    runner, owner = Runner(1), Stubborn()
    for lost in (1, 2, 3):
        given_up(runner, owner, "hang")
        assert (runner._crew._threads, len(runner._crew._running), runner._crew._lost) == (0, 0, lost)
    owner.gate.set()
    assert becomes(lambda: not runner._crew._lost)
    assert (runner._crew._threads, len(runner._crew._running), runner._crew._lost) == (0, 0, 0)
    runner.close()
    runner.close()


def test_threads_that_hang_for_ever_are_not_added_to_without_end(monkeypatch):
    monkeypatch.setattr(crew, "MAX_LOST", 2)
    runner, owner = Runner(1), Stubborn()
    for _ in range(2):
        given_up(runner, owner, "hang")
    turn, inbox = turn_of(owner, "quick")
    runner.start((turn,))
    news, _ = inbox.wait(time.monotonic() + PATIENCE)
    assert list(news) == [turn]
    (call,) = turn.calls
    assert call.status is Status.BROKEN
    assert "2 threads hang" in call.text
    owner.gate.set()
    runner.close()


def test_few_threads_are_called_at_once_and_yet_all_jobs_run_at_once(monkeypatch):
    called, call = [], crew.Crew._call

    def watched(self):
        call(self)
        called.append(self._called)

    monkeypatch.setattr(crew.Crew, "_call", watched)
    runner, owner = Runner(40), Stubborn()
    for _ in range(2):  # With threads that have to be started, then with those that wait.
        owner.gate.clear()
        turn, inbox = turn_of(owner, *["stay"] * 40)
        jobs = set(turn.jobs)
        runner.start((turn,))
        assert becomes(lambda: runner._crew._running == jobs)  # noqa: B023  (called at once)
        owner.gate.set()
        assert list(inbox.wait(time.monotonic() + PATIENCE)[0]) == [turn]
    assert max(called) == crew._MOST_CALLED
    assert runner._crew._threads == 40
    runner.close()


def test_where_no_further_thread_can_be_started_the_others_do_the_work(monkeypatch):
    start, left = threading.Thread.start, [2]

    def start_if_left(thread):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_left)
    runner, owner = Runner(8), Stubborn()
    turn, inbox = turn_of(owner, *["quick"] * 8)
    runner.start((turn,))
    assert list(inbox.wait(time.monotonic() + PATIENCE)[0]) == [turn]
    assert [call.text for call in turn.calls] == ["here"] * 8
    runner.close()
    runner = Runner(8)
    turn, inbox = turn_of(owner, "quick")
    runner.start((turn,))
    assert list(inbox.wait(time.monotonic() + PATIENCE)[0]) == [turn]
    assert (turn.calls[0].status, turn.calls[0].text[-22:]) == (Status.BROKEN, "can't start new thread")
    runner.close()


def test_whatever_an_async_tool_raises_the_loop_serves_on():
    runner, owner = Runner(1), Stubborn()
    for _ in range(2):
        turn, inbox = turn_of(owner, "interrupt")
        runner.start((turn,))
        news, _ = inbox.wait(time.monotonic() + PATIENCE)
        assert list(news) == [turn]
        assert turn.calls[0].status is Status.TOOL_ERROR
    runner.close()


@pytest.mark.parametrize("end", ["given up", "closed"])
def test_a_loop_that_was_replaced_ends_with_the_last_call_that_nobody_wants(end):
    runner, owner = Runner(1), Stubborn()
    turn, _ = turn_of(owner, "linger")
    runner.start((turn,))
    assert becomes(lambda: turn.jobs[0].task is not None)
    replaced, runner._loop = runner._loop, None
    runner._held_loops.append(replaced)
    replaced.retire()
    if end == "given up":
        runner.abandon(turn)
    else:
        runner.close()
    assert becomes(lambda: not replaced.runs)
    runner.close()


def test_finished_calls_leave_nothing_behind_in_the_inbox():
    runner, owner, inbox = Runner(2), Stubborn(), Inbox()
    stays = Turn(1, [Prepared("stay", tool=collect(Stubborn)["stay"], owner=owner)], inbox)
    runner.start((stays,))
    (job,) = stays.jobs
    assert becomes(lambda: job.begun is not None)  # The first clock to ring: the others are behind it in their line.
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=owner)] * 4
    for _ in range(400):
        turn = Turn(0, prepared, inbox)
        runner.start((turn,))
        assert list(inbox.wait(time.monotonic() + PATIENCE)[0]) == [turn]
    assert sum(map(len, inbox._fresh.values())) <= 260
    owner.gate.set()
    assert list(inbox.wait(time.monotonic() + PATIENCE)[0]) == [stays]
    assert inbox._ticking == 0
    runner.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_copy_runs_calls_of_its_own():
    """The parent's threads and loop are not in it: what relied on them would wait for ever."""
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=Stubborn())]
    assert take_turn("world", 0, prepared)[0][0].text == "here"
    child = os.fork()
    if not child:
        try:
            threading.Timer(PATIENCE, os._exit, (2,)).start()
            os._exit(0 if take_turn("world", 0, prepared)[0][0].text == "here" else 1)
        finally:  # Whatever it raised, there must not be a second run of these tests.
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
