"""Small environments for the tests, one trait each."""

import asyncio
import threading
import time
from inspect import isawaitable

import palaestra
from palaestra.envs import RewardPart, Task, ToolEnv, ToolError, Toolkit, tool
from palaestra.envs.core.scoring import score

opened: list[str] = []
gate = threading.Event()


def judged(author, attempt):
    """The reward of an attempt and its parts, with no episode around it."""
    return score(type(author).__name__, author.parts, _found(author.reward(attempt)))


def explained(author, attempt):
    """What a person is told of a reward."""
    return _found(author.explain(attempt))


def _found(result):
    async def awaited():
        return await result

    return asyncio.run(awaited()) if isawaitable(result) else result


class Notes(Toolkit):
    """Keeps lines for an episode."""

    def __init__(self):
        self.lines = None

    def start(self, task, rng):
        self.lines = []
        opened.append("start")

    def close(self):
        opened.append("close")

    @tool
    def note(self, line: str) -> str:
        self.lines.append(line)
        return f"{len(self.lines)} kept"


class Plain(ToolEnv):
    """Wants a yes."""

    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(1000)}.", answer="yes")

    def reward(self, attempt):
        return float(attempt.answer == "yes")


class Inline(Plain):
    """Only computes."""

    max_turns = 3

    @tool
    def add(self, a: int, b: int = 1) -> int:
        return a + b


class Kitchen(Inline):
    """One tool of every kind and temper."""

    max_turns = 5
    max_result_chars = 200
    max_turn_calls = 4
    system = "Be brief."
    toolkits = (Notes,)
    parts = {"success": RewardPart(), "brevity": RewardPart(weight=0.5, low=-1.0)}  # noqa: RUF012

    @tool
    async def nap(self, seconds: float, name: str) -> str:
        """Sleep on the loop."""
        await asyncio.sleep(seconds)
        return name

    @tool(blocking=True, timeout=20)
    def wait(self, seconds: float, name: str) -> str:
        """Sleep in a thread."""
        time.sleep(seconds)
        return name

    @tool(blocking=True, timeout=0.2)
    def hang(self) -> str:
        """Never in time."""
        gate.wait(60)
        return "late"

    @tool(timeout=0.2)
    async def doze(self) -> str:
        """Never in time, on the loop."""
        await asyncio.sleep(60)
        return "late"

    @tool(blocking=True, timeout=90)
    def stay(self, name: str) -> str:
        """Stay until the gate opens."""
        gate.wait(60)
        return name

    @tool
    def refuse(self) -> str:
        raise ToolError("no")

    @tool
    def crash(self) -> str:
        return str(1 // 0)

    @tool
    def leave(self) -> str:
        raise SystemExit(3)

    @tool(blocking=True)
    def unplugged(self) -> str:
        raise palaestra.Broken("the server is gone")

    @tool
    def shout(self, size: int) -> str:
        return "a" * (size // 2) + "\ud800" + "z" * (size // 2)

    def reward(self, attempt):
        return {"success": float(attempt.answer == attempt.task.answer), "brevity": -0.5}


class Meeting(Inline):
    """Its calls wait for those of the other slots: none comes back where they do not run at once."""

    size = 0
    inside: list[str] = []  # noqa: RUF012
    left: list[str] = []  # noqa: RUF012

    @tool
    async def gather(self) -> str:
        """Wait until all have come and the others have left."""
        self.inside.append("a")
        while len(self.left) < self.size:
            await asyncio.sleep(0.005)
        return "a"

    @tool(blocking=True)
    def stand(self) -> str:
        """Wait until all have come."""
        self.inside.append("b")
        until = time.monotonic() + 25
        while len(self.inside) < 2 * self.size and time.monotonic() < until:
            time.sleep(0.005)
        if len(self.inside) == 2 * self.size:
            self.left.append("b")
        return "b"


class NotOurs:
    """No ToolEnv."""
