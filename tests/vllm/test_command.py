"""`palaestra serve vllm`: what it starts is watched over, loses no turn when it is killed, and ends with it."""

import os
import signal
import time
from pathlib import Path

import pytest
from engine_contract import Served
from small_model import LONGEST, STOPS
from transformers import AutoModelForCausalLM

from palaestra.agents.engines.vllm.engine import VllmEngine

END_SECONDS = 20
START_SECONDS = 120


@pytest.fixture(scope="module")
def served(command, models):
    model = AutoModelForCausalLM.from_pretrained(models / "untied", dtype="float32").eval()
    engine = VllmEngine(model, STOPS, urls=[command[1]])
    yield Served(engine, model, STOPS, LONGEST, seconds=240.0)
    engine.close()


def running() -> dict[int, tuple[int, list[bytes]]]:
    """The session and the words of every process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            found[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[3]), words
        except (OSError, ValueError):
            continue
    return {process: told for process, told in found.items() if told[1] != [b""]}


def sessions_of(port: str) -> set[int]:
    """Of the server that listens on a port: it and all that it started are in one. A killed one begins anew."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if there := {session for session, words in running().values() if port.encode() in words and b"--port" in words}:
            return there
        time.sleep(0.2)
    raise AssertionError(f"no server listens on port {port}")


def within(sessions: set[int]) -> list[int]:
    """The processes of these sessions."""
    return [process for process, (session, _) in running().items() if session in sessions]


def server_of(port: str, killed: int = 0) -> int:
    """The process that a client talks to, other than the killed one: the child of the one that keeps its session."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        keepers = {one for one, (_, words) in running().items() if port.encode() in words and is_keeper(words)}
        for one in within(sessions_of(port)):
            if one != killed and parent_of(one) in keepers:
                return one
        time.sleep(0.2)
    raise AssertionError(f"no new server listens on port {port}")


def parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def is_keeper(words: list[bytes]) -> bool:
    return any(word.endswith(b"keeper.py") for word in words)


def test_log_probs_of_an_untied_head_stay_exact_after_many_updates(served):
    for number in range(6):
        version = served.change()
        ticket, request = served.ask(served.prompt(10), seed=number, max_tokens=40)
        completion = served.answers({ticket: request})[ticket]
        assert served.gap(request, completion) < served.tolerance
        assert set(completion.versions) == {version}


def test_no_turn_is_lost_when_the_server_is_killed_under_load(served, command):
    port = command[1].rpartition(":")[2]
    killed = server_of(port)  # Before the turns: to look for it takes longer than to answer them.
    asked, done = served.turns(24, max_tokens=300), {}
    served.begin(asked, done)
    os.kill(killed, signal.SIGKILL)
    assert len(done) < 24
    found = served.answers(asked, done)
    assert len(found) == 24
    for ticket, completion in found.items():
        assert served.gap(asked[ticket], completion) < served.tolerance, "it came back with other weights"
        assert set(completion.versions) == {served.engine.version}
    assert server_of(port, killed) != killed
    assert served.engine._faults(served.engine._shape_fault) == []


def test_everything_ends_with_the_command_even_when_it_is_killed(served, command):
    process, port = command[0], command[1].rpartition(":")[2]
    sessions = sessions_of(port)  # Asked for now: what a server started may outlive it for a moment.
    assert len(within(sessions)) >= 3
    process.kill()
    process.wait()
    until = time.monotonic() + END_SECONDS
    while left := within(sessions):
        assert time.monotonic() < until, f"{len(left)} processes are left"
        time.sleep(0.2)
    said = "; ".join(served.engine._faults(served.engine._shape_fault))
    assert any(fault in said for fault in ("refused", "no connection", "connection failed")), said
