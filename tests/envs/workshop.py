"""Environments whose tools have limits, processes, ends and hiding places."""

import asyncio
import os
import signal
import threading
import time
from typing import Literal

import worlds

from palaestra.envs import Task, ToolError, Toolkit, tool
from palaestra.errors import Broken

inside = 0
most = 0
begun: list[float] = []
fails = 0
lock = threading.Lock()
tickets: list[str] = []


def reset():
    global inside, most, fails
    inside = most = fails = 0
    begun.clear()
    tickets.clear()


def enter():
    global inside, most
    with lock:
        begun.append(time.monotonic())
        inside += 1
        most = max(most, inside)


def alone(others):
    """True until so many have been inside at once; whoever waits for that gives up before its tool's time is over."""
    return most < others and time.monotonic() - begun[0] < 20


def leave():
    global inside
    with lock:
        inside -= 1


def fail(times, error):
    global fails
    with lock:
        fails += 1
        if fails <= times:
            raise error


class Base(worlds.Plain):
    """Long enough for several calls."""

    max_turns = 6


class Limited(Base):
    """Its tools let few in."""

    @tool(blocking=True, concurrency=2)
    def narrow(self) -> str:
        """Two at once."""
        enter()
        while alone(2):
            time.sleep(0.005)
        time.sleep(0.02)
        leave()
        return "out"

    @tool(concurrency=3)
    async def gate(self, seconds: float = 0.02) -> str:
        """Three at once."""
        enter()
        try:
            while alone(3):
                await asyncio.sleep(0.005)
            await asyncio.sleep(seconds)
        finally:
            leave()
        return "out"

    @tool(concurrency=1, timeout=0.2)
    async def closed(self) -> str:
        """One at once, and none comes out."""
        await asyncio.Event().wait()
        return "out"

    @tool(concurrency=1, timeout=60)
    async def held(self) -> str:
        """One at once, until there is a ticket for it."""
        while not tickets:
            await asyncio.sleep(0.005)
        return tickets.pop()

    @tool(per_second=50)
    async def paced(self) -> str:
        """Fifty a second."""
        enter()
        leave()
        return "out"

    @tool(blocking=True, per_second=50)
    def paced_thread(self) -> str:
        """Fifty a second, in threads."""
        enter()
        leave()
        return "out"


class Flaky(Base):
    """Its tools fail the first times."""

    @tool(blocking=True, retries=2, transient=(ConnectionError,), timeout=60)
    def fetch(self, times: int) -> str:
        """Comes through after some failures."""
        fail(times, ConnectionResetError("gone"))
        return "got"

    @tool(retries=2, transient=ConnectionError, timeout=60)
    async def fetch_async(self, times: int) -> str:
        """The same, on the loop."""
        fail(times, ConnectionResetError("gone"))
        return "got"

    @tool(retries=3, transient=(Exception,))
    async def refuse(self) -> str:
        fail(99, ToolError("no"))
        return "never"

    @tool(retries=1, transient=(Broken,))
    async def unplugged(self) -> str:
        fail(99, Broken("the server is gone"))
        return "never"

    @tool(retries=50, transient=(OSError,), timeout=60)
    async def never(self) -> str:
        fail(99, OSError("gone"))
        return "never"


class Heavy(Base):
    """Its tools compute in processes."""

    @tool(process=True)
    def square(self, number: int, sign: Literal["+", "-"] = "+") -> str:
        return f"{sign}{number**2} in {os.getpid() != os.getppid()}"

    @tool(process=True)
    def die(self, how: str) -> str:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "lie":
            for descriptor in range(3, 64):
                try:
                    os.write(descriptor, b"\x00\x00\x00\x04oops")
                except OSError:
                    continue
        os._exit(3)

    @tool(process=True, timeout=0.5)
    def spin(self) -> str:
        while True:
            pass

    @tool(process=True, timeout=60)
    def spin_long(self) -> str:
        """Compute for a minute at least."""
        while True:
            pass

    @tool(process=True)
    def refuse(self) -> str:
        raise ToolError("no")

    @tool(process=True)
    def flood(self, size: int) -> str:
        return "\ud800" + "a" * size


class Lamp(Toolkit):
    """Starts and closes on command; has a tool that waits, so it may wait itself."""

    gate = threading.Event()
    made = []  # noqa: RUF012
    """All of them, in the order in which they were made."""

    def __init__(self):
        self.log = []
        Lamp.made.append(self)

    def start(self, task, rng):
        self.log.append("start")
        if "hang start" in task.prompt:
            Lamp.gate.wait(60)
            self.log.append("late start")
        if "fail start" in task.prompt:
            raise RuntimeError("no bulb")

    def close(self):
        self.log.append("close")
        if "hang close" in self.mood:
            Lamp.gate.wait(60)

    mood = ""

    @tool(blocking=True)
    def glow(self, mood: str = "") -> str:
        self.mood = mood
        return "lit"

    @tool(blocking=True, timeout=0.2)
    def hang(self) -> str:
        Lamp.gate.wait(60)
        return "late"


class Lit(worlds.Plain):
    """An environment with a lamp."""

    toolkits = (Lamp,)

    def task_set(self, split):
        return [Task("plain"), Task("hang start"), Task("fail start")]

    def reward(self, attempt):
        if attempt.answer == "raise":
            raise ZeroDivisionError
        return float(attempt.answer == "yes")


class Hanging(Lit):
    """The same with short deadlines, for what hangs."""

    deadlines = {"start": 0.3, "close": 0.3}  # noqa: RUF012


class Loopy(Base):
    """Its async tools hold the loop."""

    gate = threading.Event()
    holding = threading.Event()
    """A tool has the loop."""

    @tool(timeout=60)
    async def pinch(self, seconds: float) -> str:
        """Blocks the loop for a moment."""
        time.sleep(seconds)
        return "let go"

    @tool(timeout=120)
    async def hold(self) -> str:
        """Blocks the loop, within its deadline."""
        Loopy.gate.wait(60)
        return "held"

    @tool(timeout=0.5)
    async def grab(self) -> str:
        """Blocks the loop past its deadline."""
        Loopy.holding.set()
        Loopy.gate.wait(60)
        return "late"

    @tool(timeout=120)
    async def nap(self, seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @tool(timeout=60)
    async def slow(self, secret: str) -> str:
        """Takes its time."""
        while not Loopy.gate.is_set():
            await asyncio.sleep(0.005)
        return "done"
