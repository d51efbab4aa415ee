"""palaestra's side of `make bench-envs`: the calculator as a ToolEnv, with a schema, checked arguments and messages.

A way is the kind of tool and the interface: `step` is Gymnasium's vector environment in lockstep, `free` the arena as
the trainer uses it, where an episode continues as soon as its own call is done. `drawn` draws a new problem for each
episode, as procedural environments do. `blocking pool` has the threads that the arena chooses; the other blocking ways
have one thread per environment. `uneven` waits are exponentially distributed, the same on both interfaces.

With `BESIDE=FOLDER` this also runs with the palaestra of another checkout, so it only uses what both have: ids, the
arena, Gymnasium's interfaces and the names that authors import. `two-hop` and `by hand` play the suite's TwoHop with
the turns of its demonstrator.
"""

import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy as np
from drive import Setting, answer, evaluate, pause_and_evaluate, question, script, scripts, serve, wait_and_evaluate

import palaestra
from palaestra.envs import Task, ToolEnv, tool
from palaestra.episode import Attempt, Start
from palaestra.formats import ParsedCall, hermes

TASKS = [Task(prompt=question(index), answer=answer(index)) for index in range(64)]
TWO_HOP, CODE_MATH = "palaestra/TwoHop-v0", "palaestra/CodeMath-v0"


class Calculator(ToolEnv):
    """Environment that asks for a product; its tool only computes."""

    max_turns = 16

    def __init__(self, latency: float = 0.0) -> None:
        super().__init__()
        self._latency = latency

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the problems that all sides play."""
        return TASKS

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an expression."""
        return evaluate(expression)

    def reward(self, attempt: Attempt) -> float:
        """Return 1.0 for the right answer."""
        return float(attempt.answer == attempt.task.answer)


class Asynchronous(Calculator):
    """Environment whose tool waits on the event loop."""

    @tool
    async def calculator(self, expression: str) -> str:
        """Evaluate an expression."""
        return await pause_and_evaluate(expression, self._latency)


class Uneven(Calculator):
    """Environment whose tool waits for as long as its argument says."""

    @tool
    async def calculator(self, expression: str, seconds: float) -> str:
        """Evaluate an expression."""
        return await pause_and_evaluate(expression, seconds)


class Blocking(Calculator):
    """Environment whose tool waits in a thread."""

    @tool(blocking=True)
    def calculator(self, expression: str) -> str:
        """Evaluate an expression."""
        return wait_and_evaluate(expression, self._latency)


class Drawn(Calculator):
    """Environment that draws its problems; the answer to the other sides' question counts as right."""

    task_set = ToolEnv.task_set

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a problem as the suite's Calculator does."""
        a, b = rng.integers(100, size=2)
        return Task(prompt=f"What is {a} * {b}?", answer=str(a * b))

    def reward(self, attempt: Attempt) -> float:
        """Return 1.0 for any answer."""
        return float(attempt.answer is not None)


for _class in (Calculator, Asynchronous, Uneven, Blocking, Drawn):
    palaestra.register(f"bench/{_class.__name__}-v0", f"{__name__}:{_class.__name__}")


def call(name: str, **arguments: Any) -> str:
    """Return a call as models write it."""
    return hermes.render([ParsedCall(name, arguments)])


@cache
def demonstrated(task: int) -> tuple[str, ...]:
    """Return the turns of TwoHop's demonstrator for this task."""
    env: Any = gymnasium.make(TWO_HOP)
    _, info = env.reset(options={"task": task})
    messages, turns, over = list(info["messages"]), [], False
    while not over:
        turns.append(palaestra.demonstrator(TWO_HOP)(messages, np.random.default_rng(task)))
        *_, over, _, info = env.step(turns[-1])
        messages += [{"role": "assistant", "content": turns[-1]}, *info["messages"]]
    return tuple(turns)


class Played:
    """Episodes of an id through one of three interfaces; the turns are given by turn and environment."""

    def __init__(
        self, setting: Setting, env_id: str, turns: Sequence[Sequence[str]], face: str, **options: Any
    ) -> None:
        self._turns, self._face, self._seed, self._envs = turns, face, 0, setting.envs
        self.counted = env_id != TWO_HOP  # Its tool is not the benchmark's.
        self.waited = setting.envs * setting.latency * (setting.turns - 1)
        self.least = setting.latency * (setting.turns - 1)
        if face == "hand":
            self._env: Any = gymnasium.make(env_id, disable_env_checker=True, **options)
        elif face == "step":
            self._env = gymnasium.make_vec(env_id, num_envs=setting.envs, **options)
        else:
            self._env = palaestra.arena(env_id, setting.envs, **options)

    def begin(self) -> None:
        """Open all episodes."""
        if self._face == "step":
            self._env.reset(options={"tasks": [index % len(TASKS) for index in range(self._envs)]})
        elif self._face == "free":
            for slot in range(self._envs):
                self._seed += 1
                self._env.begin(slot, Start(task=slot % len(TASKS), seed=self._seed))

    def play(self) -> int:
        """Play one episode in each environment."""
        self.begin()
        if self._face == "free":
            return self._play_free()
        if self._face == "step":
            for turn in self._turns:
                _, rewards, *_ = self._env.step(turn)
            return round(float(rewards.sum()))
        right = 0.0
        for index in range(self._envs):
            self._seed += 1
            self._env.reset(seed=self._seed, options={"task": index % len(TASKS)})
            for turn in self._turns:
                _, reward, *_ = self._env.step(turn[index])
            right += reward
        return round(right)

    def _play_free(self) -> int:
        running, right = self._envs, 0.0
        turns = [0] * running
        while running:
            texts = {}
            for event in self._env.recv():
                if event.ending is None:
                    texts[event.slot] = self._turns[turns[event.slot]][event.slot]
                    turns[event.slot] += 1
                else:
                    running -= 1
                    right += event.reward or 0.0
            self._env.send(texts)
        return round(right)

    def take_first_turns(self) -> None:
        """Open all episodes in the arena, and take one turn in each."""
        self.begin()
        for turn in (self._turns[0], ()):
            missing = self._envs
            while missing:
                missing -= len(self._env.recv(missing))
            self._env.send(dict(enumerate(turn)))

    def close(self) -> None:
        """Close the environments with their threads and event loop."""
        self._env.close()


def calculators(setting: Setting, of: str, face: str, workers: bool = False) -> Played:
    """Return calculators: with `workers` one thread per environment, otherwise as many as the arena chooses."""
    options = {"max_workers": setting.envs} if workers else {}
    turns = scripts(setting, lambda expression: call("calculator", expression=expression))
    return Played(setting, f"bench/{of}-v0", turns, face, latency=setting.latency, **options)


def uneven(setting: Setting, face: str) -> Played:
    """Return environments in which each call says how long it waits."""
    draw = partial(random.Random(setting.envs * setting.turns).expovariate, 1 / setting.latency)
    waits = [[draw() for _ in range(setting.turns - 1)] for _ in range(setting.envs)]

    def waiting(row: Sequence[float]) -> Callable[[str], str]:
        left = iter(row)
        return lambda expression: call("calculator", expression=expression, seconds=next(left))

    rows = [script(index, setting.turns, waiting(row)) for index, row in enumerate(waits)]
    batch = Played(setting, "bench/Uneven-v0", list(zip(*rows, strict=True)), face)
    batch.waited = sum(map(sum, waits))
    batch.least = max(map(sum, waits)) if face == "free" else sum(map(max, zip(*waits, strict=True)))
    return batch


def two_hop(setting: Setting, face: str = "free") -> Played:
    """Return environments of the suite's TwoHop."""
    return Played(setting, TWO_HOP, demonstrations(setting.envs), face)


def demonstrations(envs: int) -> list[tuple[str, ...]]:
    """Return the turns of its demonstrator, by turn and environment."""
    return list(zip(*(demonstrated(slot % len(TASKS)) for slot in range(envs)), strict=True))


def memory(envs: int) -> dict[str, float]:
    """Return the bytes that Python holds for a slot: after creation, with an open episode after one turn, and after its
    end.
    """
    two_hop(Setting("", len(TASKS))).play()
    turns = demonstrations(envs)
    gc.collect()
    tracemalloc.start()
    before, figures = tracemalloc.get_traced_memory()[0], dict[str, float]()

    def weigh(name: str) -> None:
        gc.collect()
        figures[name] = (tracemalloc.get_traced_memory()[0] - before) / envs

    arena = Played(Setting("", envs), TWO_HOP, turns, "free")
    weigh("made")
    arena.take_first_turns()
    weigh("running")
    arena.play()
    weigh("over")
    arena.close()
    tracemalloc.stop()
    return figures


def sandboxed(calls: int) -> dict[str, float]:
    """Return the milliseconds of a call of CodeMath's Python tool, without the first call of a session."""
    env: Any = gymnasium.make(CODE_MATH, disable_env_checker=True)
    text, taken = call("python", code="print(6 * 7)"), list[float]()
    while len(taken) < calls:
        env.reset(seed=len(taken), options={"task": 0})
        for number in range(12):
            began = time.perf_counter()
            printed, *_ = env.step(text)
            if number:
                taken.append(time.perf_counter() - began)
            if "42" not in printed:
                raise RuntimeError(f"the call printed {printed!r}; expected 42")
    env.close()
    return {"wall_ms": statistics.median(taken) * 1e3, "least_ms": min(taken) * 1e3}


def hops() -> dict[str, float]:
    """Return the number of Python calls in one `step` of TwoHop, and of the files of palaestra that they are in."""
    env: Any = gymnasium.make(TWO_HOP).unwrapped
    package, passed, figures = f"{Path(palaestra.__file__).parent}/", list[str](), dict[str, float]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            passed.append(frame.f_code.co_filename)

    for _ in range(2):  # What happens only once is not counted.
        env.reset(seed=0, options={"task": 0})
        for name, text in zip(("first", "call", "answer"), demonstrated(0), strict=True):
            passed.clear()
            sys.setprofile(note)
            env.step(text)
            sys.setprofile(None)
            figures[f"{name}_calls"] = len(passed)
            figures[f"{name}_files"] = len({file for file in passed if file.startswith(package)})
    return figures


def where() -> dict[str, str]:
    """Return the folder that palaestra was imported from."""
    return {"checkout": str(Path(palaestra.__file__).resolve().parents[1])}


if __name__ == "__main__":
    serve(
        ("gymnasium", "pydantic", "numpy"),
        {
            "step": partial(calculators, of="Calculator", face="step"),
            "free": partial(calculators, of="Calculator", face="free"),
            "drawn step": partial(calculators, of="Drawn", face="step"),
            "async step": partial(calculators, of="Asynchronous", face="step"),
            "async free": partial(calculators, of="Asynchronous", face="free"),
            "blocking step": partial(calculators, of="Blocking", workers=True, face="step"),
            "blocking free": partial(calculators, of="Blocking", workers=True, face="free"),
            "blocking pool": partial(calculators, of="Blocking", face="step"),
            "uneven step": partial(uneven, face="step"),
            "uneven free": partial(uneven, face="free"),
            "two-hop": two_hop,
            "by hand": partial(two_hop, face="hand"),
        },
        memory=memory,
        sandboxed=sandboxed,
        hops=hops,
        where=where,
    )
