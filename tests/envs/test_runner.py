"""Runner: what was given up stays given up, and a lost thread costs no later call its place."""

import asyncio
import gc
import os
import threading
import time

import pytest
from driven import PATIENCE, becomes

from palaestra.envs import tool
from palaestra.envs.core.tool import collect
from palaestra.envs.running import crew
from palaestra.envs.running.inbox import Inbox
from palaestra.envs.running.loop import LoopThread
from palaestra.envs.running.runner import Runner, wait_for
from palaestra.envs.running.work import Pending, Work
from palaestra.errors import Broken


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


def pending_of(owner, *names):
    """Works that are needed together, one for each of these tools."""
    tools = collect(Stubborn)
    return Pending([Work(name, getattr(owner, name), tools[name].conditions) for name in names])


def started(runner, owner, *names, inbox=None):
    """The same, set going, and the inbox that they come into."""
    pending, inbox = pending_of(owner, *names), inbox or Inbox("world")
    runner.start((pending,), inbox)
    return pending, inbox


def heard(inbox):
    """The next to be complete."""
    return inbox.wait(time.monotonic() + PATIENCE)


def late(runner, owner, name, begun=None):
    """A work whose deadline has passed."""
    pending, inbox = started(runner, owner, name)
    assert begun is None or begun.wait(PATIENCE), "what never began would not be cancelled"
    assert heard(inbox) == [pending]
    assert pending.late is pending.works[0]
    return pending, inbox


def broken(pending, inbox):
    """What a work that could not begin was told."""
    assert heard(inbox) == [pending]
    assert isinstance(pending.works[0].error, Broken)
    return str(pending.works[0].error)


def test_a_late_result_reaches_nobody():
    runner, owner = Runner(1), Stubborn()
    pending, inbox = late(runner, owner, "ignore", owner.ignoring)
    assert owner.cancelled.wait(PATIENCE)
    later, _ = started(runner, owner, "interrupt", inbox=inbox)  # It comes in behind it: they share the loop.
    assert heard(inbox) == [later]
    assert (pending.late is not None, inbox.wait(time.monotonic())) == (True, [])
    runner.close()


def test_works_that_are_over_leave_nothing_to_the_garbage_collector():
    owner = Stubborn()
    wait_for(pending_of(owner, "quick"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(2000):
            wait_for(pending_of(owner, "quick"))
        assert gc.collect() < 1000  # A loop of another test's that ends meanwhile leaves a hundred things.
    finally:
        gc.enable()


def test_a_lost_thread_is_written_off_once():
    runner, owner = Runner(1), Stubborn()
    for lost in (1, 2, 3):
        late(runner, owner, "hang")
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
        late(runner, owner, "hang")
    assert "2 threads hang" in broken(*started(runner, owner, "quick"))
    owner.gate.set()
    runner.close()


def test_few_threads_are_called_at_once_and_yet_all_works_run_at_once(monkeypatch):
    called, call = [], crew.Crew._call

    def watched(self):
        call(self)
        called.append(self._called)

    monkeypatch.setattr(crew.Crew, "_call", watched)
    runner, owner = Runner(40), Stubborn()
    for _ in range(2):  # With threads that have to be started, then with those that wait.
        owner.gate.clear()
        pending, inbox = started(runner, owner, *["stay"] * 40)
        works = set(pending.works)
        assert becomes(lambda: runner._crew._running == works)  # noqa: B023  (called at once)
        owner.gate.set()
        assert heard(inbox) == [pending]
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
    pending, inbox = started(runner, owner, *["quick"] * 8)
    assert heard(inbox) == [pending]
    assert [work.value for work in pending.works] == ["here"] * 8
    runner.close()
    runner = Runner(8)
    assert broken(*started(runner, owner, "quick")).endswith("can't start new thread")
    runner.close()


def test_whatever_an_async_tool_raises_the_loop_serves_on():
    runner, owner = Runner(1), Stubborn()
    for _ in range(2):
        pending, inbox = started(runner, owner, "interrupt")
        assert heard(inbox) == [pending]
        assert isinstance(pending.works[0].error, KeyboardInterrupt)
    runner.close()


@pytest.mark.parametrize("end", ["given up", "closed"])
def test_a_loop_that_was_replaced_ends_with_the_last_call_that_nobody_wants(end):
    runner, owner = Runner(1), Stubborn()
    pending, _ = started(runner, owner, "linger")
    assert becomes(lambda: pending.works[0].task is not None)
    replaced, runner._loop = runner._loop, None
    runner._held_loops.append(replaced)
    replaced.retire()
    if end == "given up":
        runner.give_up(pending)
    else:
        runner.close()
    assert becomes(lambda: not replaced.runs)
    runner.close()


def test_a_loop_that_is_stopped_in_a_blocked_round_leaves_no_thread():
    """The job stops the loop again while it is cancelled, and the watching thread begins to look in that last round."""
    before, begun = set(threading.enumerate()), threading.Event()
    thread = LoopThread()

    async def block():
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            thread.loop.stop()
            time.sleep(0.3)
            raise

    asyncio.run_coroutine_threadsafe(block(), thread.loop)
    assert begun.wait(PATIENCE)
    thread._alive = 1  # As a job of a runner would be: the watching thread looks.
    thread._busy.set()
    thread.stop()
    assert becomes(lambda: not set(threading.enumerate()) - before)
    assert thread.loop.is_closed()


def test_finished_calls_leave_nothing_behind_in_the_inbox():
    runner, owner, inbox = Runner(2), Stubborn(), Inbox()
    stays, _ = started(runner, owner, "stay", inbox=inbox)
    (work,) = stays.works
    assert becomes(lambda: work.started_at is not None)  # The others are behind it in their queue.
    for _ in range(400):
        pending, _ = started(runner, owner, *["quick"] * 4, inbox=inbox)
        assert heard(inbox) == [pending]
    assert sum(map(len, inbox._fresh.values())) <= 260
    owner.gate.set()
    assert heard(inbox) == [stays]
    assert inbox._ticking == 0
    runner.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_copy_runs_works_of_its_own():
    """The parent's threads and loop are not in it: what relied on them would wait for ever."""
    here, there = pending_of(Stubborn(), "quick"), pending_of(Stubborn(), "quick")
    wait_for(here)
    assert here.works[0].value == "here"
    child = os.fork()
    if not child:
        try:
            threading.Timer(PATIENCE, os._exit, (2,)).start()
            wait_for(there)
            os._exit(0 if there.works[0].value == "here" else 1)
        finally:  # Whatever it raised, there must not be a second run of these tests.
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
