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


class Stubborn:
    """Tools that come back long after nobody wants them."""

    def __init__(self):
        self.gate = threading.Event()
        self.cancelled = threading.Event()

    @tool(blocking=True, timeout=0.05)
    def hang(self) -> str:
        """Waits for the gate."""
        self.gate.wait(5)
        return "late"

    @tool(timeout=0.05)
    async def ignore(self) -> str:
        """Answers although it was cancelled."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            self.cancelled.set()
        return "late"

    @tool(blocking=True)
    def quick(self) -> str:
        """Answers."""
        return "here"

    @tool(blocking=True)
    def stay(self) -> str:
        """Waits for the gate, and has the time to."""
        self.gate.wait(20)
        return "at last"

    @tool(timeout=60)
    async def linger(self) -> str:
        """Waits for what never comes."""
        await asyncio.Event().wait()
        return "never"

    @tool
    async def interrupt(self) -> str:
        """Raises what would end a loop."""
        raise KeyboardInterrupt("by the tool")


def turn_of(owner, *names):
    tools = collect(Stubborn)
    inbox = Inbox("world")
    return Turn(0, [Prepared(name, tool=tools[name], owner=owner) for name in names], inbox), inbox


def given_up(runner, owner, name):
    turn, inbox = turn_of(owner, name)
    runner.start((turn,))
    news, late = inbox.wait(time.monotonic() + 5)
    assert (list(news), late) == ([], turn.jobs[0])
    runner.abandon(turn)
    return turn, inbox


def test_a_late_result_reaches_nobody():
    runner, owner = Runner(1), Stubborn()
    turn, inbox = given_up(runner, owner, "ignore")
    assert owner.cancelled.wait(5)
    assert inbox.wait(time.monotonic() + 0.1) == ([], None)
    assert turn.calls == []
    runner.close()


def test_turns_that_are_over_leave_nothing_to_the_garbage_collector():
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=Stubborn())]
    take_turn("world", 0, prepared)
    gc.collect()
    gc.disable()
    try:
        for _ in range(200):
            take_turn("world", 0, prepared)
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_a_lost_thread_is_written_off_once():
    runner, owner = Runner(1), Stubborn()
    for lost in (1, 2, 3):
        given_up(runner, owner, "hang")
        assert (runner._crew._threads, len(runner._crew._running), runner._crew._lost) == (0, 0, lost)
    owner.gate.set()
    until = time.monotonic() + 5
    while runner._crew._lost and time.monotonic() < until:
        time.sleep(0.01)
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
    news, _ = inbox.wait(time.monotonic() + 5)
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
        runner.start((turn,))
        until = time.monotonic() + 10
        while len(runner._crew._running) < 40 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(runner._crew._running) == 40
        owner.gate.set()
        assert list(inbox.wait(time.monotonic() + 10)[0]) == [turn]
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
    assert list(inbox.wait(time.monotonic() + 5)[0]) == [turn]
    assert [call.text for call in turn.calls] == ["here"] * 8
    runner.close()
    runner = Runner(8)
    turn, inbox = turn_of(owner, "quick")
    runner.start((turn,))
    assert list(inbox.wait(time.monotonic() + 5)[0]) == [turn]
    assert (turn.calls[0].status, turn.calls[0].text[-22:]) == (Status.BROKEN, "can't start new thread")
    runner.close()


def test_whatever_an_async_tool_raises_the_loop_serves_on():
    runner, owner = Runner(1), Stubborn()
    for _ in range(2):
        turn, inbox = turn_of(owner, "interrupt")
        runner.start((turn,))
        news, _ = inbox.wait(time.monotonic() + 5)
        assert list(news) == [turn]
        assert turn.calls[0].status is Status.TOOL_ERROR
    runner.close()


@pytest.mark.parametrize("end", ["given up", "closed"])
def test_a_loop_that_was_replaced_ends_with_the_last_call_that_nobody_wants(end):
    runner, owner = Runner(1), Stubborn()
    turn, _ = turn_of(owner, "linger")
    runner.start((turn,))
    until = time.monotonic() + 5
    while turn.jobs[0].task is None and time.monotonic() < until:
        time.sleep(0.001)
    replaced, runner._loop = runner._loop, None
    runner._held_loops.append(replaced)
    replaced.retire()
    if end == "given up":
        runner.abandon(turn)
    else:
        runner.close()
    while replaced.runs and time.monotonic() < until:
        time.sleep(0.01)
    assert not replaced.runs
    runner.close()


def test_finished_calls_leave_nothing_behind_in_the_inbox():
    runner, owner, inbox = Runner(2), Stubborn(), Inbox()
    stays = Turn(1, [Prepared("stay", tool=collect(Stubborn)["stay"], owner=owner)], inbox)
    runner.start((stays,))  # The first clock to ring: those behind it are not the head of their line.
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=owner)] * 4
    for _ in range(400):
        turn = Turn(0, prepared, inbox)
        runner.start((turn,))
        assert list(inbox.wait(time.monotonic() + 5)[0]) == [turn]
    assert sum(map(len, inbox._fresh.values())) <= 260
    owner.gate.set()
    assert list(inbox.wait(time.monotonic() + 5)[0]) == [stays]
    assert inbox._ticking == 0
    runner.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_copy_runs_calls_of_its_own():
    """The parent's threads and loop are not in it: what relied on them would wait for ever."""
    prepared = [Prepared("quick", tool=collect(Stubborn)["quick"], owner=Stubborn())]
    assert take_turn("world", 0, prepared)[0][0].text == "here"
    child = os.fork()
    if not child:
        threading.Timer(20, os._exit, (2,)).start()
        os._exit(0 if take_turn("world", 0, prepared)[0][0].text == "here" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
