"""An environment whose tools and toolkits fail in every way there is, in a fifth of its episodes."""

import asyncio
import threading
import time
from collections import Counter

import numpy as np

from palaestra.envs import Task, ToolEnv, Toolkit, tool
from palaestra.errors import Broken

KINDS = (
    "drop", "delay", "crash", "garbage", "never, on the loop", "never, in a thread", "start crashes", "start hangs",
    "close hangs",
)  # fmt: skip
FATAL = {"drop", "never, on the loop", "never, in a thread", "start crashes", "start hangs"}
TIMEOUT = 5.0
"""What works takes some hundredths of a second, and a busy machine may take a hundred times as long."""

gate = threading.Event()
injected: Counter[str] = Counter()
share = 0.0
_rng = np.random.default_rng(0)
_lock = threading.Lock()


def draw() -> str:
    """The fault of an attempt at an episode, or ""."""
    with _lock:
        if _rng.random() >= share:
            return ""
        kind = KINDS[int(_rng.integers(len(KINDS)))]
        injected[kind] += 1
        return kind


class Storm(Toolkit):
    """Two ways to ask for the number, each as unreliable as the other."""

    def __init__(self):
        self.fault = ""
        self.number = ""

    def start(self, task, rng):
        self.fault, self.number = draw(), str(task.answer)
        if self.fault == "start crashes":
            raise ConnectionError("no display")
        if self.fault == "start hangs":
            gate.wait()

    def close(self):
        if self.fault == "close hangs":
            gate.wait()

    def strike(self):
        """What the fault does at once; garbage is returned."""
        fault = self.fault
        if fault in ("drop", "crash", "garbage"):
            self.fault = ""
        if fault == "drop":
            raise Broken("the connection was dropped")
        if fault == "crash":
            raise RuntimeError("\ud800 segmentation fault")
        return "\x00\ud800<tool_call>{" * 1000 if fault == "garbage" else None

    @tool(timeout=TIMEOUT)
    async def ask(self) -> str:
        """Half of the number."""
        await asyncio.sleep(0.02)
        if self.fault == "delay":
            await asyncio.sleep(0.3)
        if self.fault == "never, on the loop":
            await asyncio.Event().wait()
        return self.strike() or f"even {self.number[::2]}"

    @tool(blocking=True, timeout=TIMEOUT)
    def fetch(self) -> str:
        """The other half."""
        time.sleep(0.02)
        if self.fault == "never, in a thread":
            gate.wait()
        return self.strike() or f"odd {self.number[1::2]}"


class Weather(ToolEnv):
    """Put a number together from its halves."""

    max_turns = 6
    deadlines = {"start": TIMEOUT, "close": TIMEOUT}  # noqa: RUF012
    toolkits = (Storm,)

    def task(self, rng):
        return Task(f"Ask, fetch, and say the number {rng.integers(10**6)}.", str(rng.integers(1000, 10_000)))

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


def demonstrate(messages, rng):
    """Ask until both halves have come."""
    halves = {}
    for message in messages:
        if message["role"] == "tool":
            kind, _, digits = str(message["content"]).partition(" ")
            if kind in ("even", "odd") and digits.isdigit():
                halves[kind] = digits
    for kind, name in (("even", "ask"), ("odd", "fetch")):
        if kind not in halves:
            return f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    return "".join(first + second for first, second in zip(halves["even"], halves["odd"], strict=True))
