"""A world whose tools tell who runs them, take their time, or end their process. Ray's workers import it."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import palaestra
from palaestra.envs import Task, ToolEnv, tool


class Shift(ToolEnv):
    """Several turns; the answer is known to whoever waited for it."""

    max_turns = 4

    def task(self, rng):
        return Task(prompt=f"Wait for {rng.integers(1000)}.", answer="done", data=self.held())

    def held(self):
        return {}

    @tool
    async def wait(self, seconds: float) -> str:
        "Wait."
        await asyncio.sleep(seconds)
        return f"waited in {os.getpid()}"

    @tool
    def stop(self, signal_name: str, once: str = "") -> str:
        "Send a signal to this process, where `once` is no file yet."
        if not once or not Path(once).exists():
            Path(once).touch() if once else None
            os.kill(os.getpid(), getattr(signal, signal_name))
        return "went on"

    def reward(self, attempt):
        return float(attempt.answer == "done")


class Unsendable(Shift):
    """Its task holds what no pickle can."""

    def held(self):
        return {"open": threading.Lock()}


palaestra.register("test/Shift-v0", "ray_worlds:Shift")
palaestra.register("test/Unsendable-v0", "ray_worlds:Unsendable")
palaestra.register("test/HostedHops-v0", "harness_worlds:Hops")
