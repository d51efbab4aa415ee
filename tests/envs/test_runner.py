"""Runner: what was given up stays given up, and a lost thread costs no later call its place."""

import asyncio
import threading
import time
from queue import SimpleQueue

from palaestra.envs import tool
from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.runner import Runner, Turn
from palaestra.envs.core.tool import collect


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


def given_up(runner, owner, name):
    done = SimpleQueue()
    turn = Turn(0, [Prepared(name, tool=collect(Stubborn)[name], owner=owner)], done)
    runner.start(turn)
    late, index = runner.wait(done, (turn,), time.monotonic() + 5)
    assert (late, index) == (turn, 0)
    runner.abandon(turn)
    return turn, done


def test_a_late_result_reaches_nobody():
    runner, owner = Runner(1), Stubborn()
    turn, done = given_up(runner, owner, "ignore")
    assert owner.cancelled.wait(5)
    time.sleep(0.1)
    assert turn.calls == [None]
    assert done.empty()
    runner.close()


def test_a_lost_thread_is_written_off_once():
    runner, owner = Runner(1), Stubborn()
    for _ in range(3):
        given_up(runner, owner, "hang")
        assert (runner._threads, runner._pending) == (0, 0)
    owner.gate.set()
    time.sleep(0.1)
    assert (runner._threads, runner._pending) == (0, 0)
    runner.close()
    runner.close()
