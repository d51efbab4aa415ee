"""Code that all sides of `make bench-envs` share: the script of an episode, the tool, the clocks, the connection.

Standard library only, since it runs in the virtual environment of every peer. A side is a program that calls `serve`
with its ways to play; it reads one JSON object per line and answers each with one. The work is the same for all: every
environment has the same problem on every side, and its tool computes the same expressions with the same code. A batch
is an error and gives no figure if a call was not run or an episode was not answered correctly. Only the form of a call
differs: each suite has its own.
"""

import ast
import asyncio
import gc
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol

from line import answer_requests

PROBLEMS = tuple((17 + index, 23 + 7 * index % 61) for index in range(64))
"""Factors in the question of environment `index % 64`."""
WARM_ENVS = 64
WARM_SHARE = 0.3
"""A new batch is played for this share of the measurement's seconds before it is measured, but at least once."""
_evaluated = count()
TAG = re.compile(r"<calculator>(.*?)</calculator>", re.DOTALL)
"""Pattern of a call, for suites that parse no calls themselves."""
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.Add: operator.add, ast.Mult: operator.mul}


@dataclass(frozen=True)
class Setting:
    """Settings of the played episodes."""

    way: str
    envs: int
    latency: float = 0.0
    """Seconds that the tool waits."""
    turns: int = 3
    """Number of turns: the last is the answer, the others call the tool."""


class Batch(Protocol):
    """Open environments of one suite."""

    def begin(self) -> None:
        """Open an episode in each environment."""

    def play(self) -> int:
        """Play one whole episode in each environment. Return the number of right answers."""

    def close(self) -> None:
        """Close the environments."""


def question(index: int) -> str:
    """Return the question of an episode."""
    a, b = PROBLEMS[index % len(PROBLEMS)]
    return f"What is {a} * {b}?"


def answer(index: int) -> str:
    """Return the right answer."""
    a, b = PROBLEMS[index % len(PROBLEMS)]
    return str(a * b)


def script(index: int, turns: int, call: Callable[[str], str]) -> list[str]:
    """Return the turns of the agent; `call` writes a call of the calculator."""
    a, b = PROBLEMS[index % len(PROBLEMS)]
    calls = [f"I compute step {turn + 1}.\n{call(f'{a} * {b} + {turn}')}" for turn in range(turns - 1)]
    return [*calls, answer(index)]


def scripts(setting: Setting, call: Callable[[str], str]) -> list[list[str]]:
    """Return the turns of all agents, by turn and environment."""
    return [list(turn) for turn in zip(*(script(at, setting.turns, call) for at in range(setting.envs)), strict=True)]


def tag(expression: str) -> str:
    """Return a call between tags."""
    return f"<calculator>{expression}</calculator>"


def evaluate(expression: str) -> str:
    """Return the value of a sum of products: the tool."""
    next(_evaluated)
    return str(_value(ast.parse(expression, mode="eval").body))


def wait_and_evaluate(expression: str, latency: float) -> str:
    """Wait in this thread if there is a delay, then evaluate."""
    if latency:
        time.sleep(latency)
    return evaluate(expression)


async def pause_and_evaluate(expression: str, latency: float) -> str:
    """Wait on the event loop, then evaluate."""
    await asyncio.sleep(latency)
    return evaluate(expression)


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(type(node).__name__)


class Lockstep:
    """Batch in which each turn is taken in all environments before the next one, as users of the suites play."""

    def __init__(
        self,
        setting: Setting,
        begin: Callable[[], Any],
        step: Callable[[list[str]], Iterable[float]],
        close: Callable[[], Any] = lambda: None,
        call: Callable[[str], str] = tag,
    ) -> None:
        """Create the batch. `step` takes the turns of all environments and returns their rewards, 1.0 for the right
        answer.
        """
        self.begin, self.close = begin, close
        self.processes: list[int] = []
        self._step, self._turns = step, scripts(setting, call)

    def play(self) -> int:
        """Play one episode in each environment."""
        self.begin()
        rewards: Iterable[float] = ()
        for turn in self._turns:
            rewards = self._step(turn)
        return round(sum(map(float, rewards)))


def looped(setting: Setting, make: Callable[[int], Any], threads: int = 0) -> Lockstep:
    """Return a batch of environments that run one after another or in a thread pool, for suites without batches.

    An object of `make` has `begin()` and `step(text)`, which returns 1.0 if the text was the right answer.
    """
    envs = [make(index) for index in range(setting.envs)]
    pool = ThreadPoolExecutor(threads) if threads else None
    run: Callable[..., Iterable[float]] = pool.map if pool is not None else map

    def begin() -> None:
        for env in envs:  # In turn: nothing waits here.
            env.begin()

    def step(turn: list[str]) -> list[float]:
        return list(run(_step, envs, turn))

    return Lockstep(setting, begin, step, pool.shutdown if pool is not None else lambda: None)


def _step(env: Any, text: str) -> float:
    return float(env.step(text))


def serve(
    packages: tuple[str, ...], ways: Mapping[str, Callable[[Setting], Batch]], **more: Callable[..., Any]
) -> None:
    """Answer requests until the benchmark closes the line; `more` are verbs that only this side has."""
    kept: dict[Setting, Batch] = {}
    try:
        answer_requests(packages, {verb: partial(do, ways, kept) for verb, do in _VERBS.items()} | more)
    finally:
        _forget(ways, kept)


def _forget(ways: Mapping[str, Callable[[Setting], Batch]], kept: dict[Setting, Batch]) -> dict[str, Any]:
    """Close the open batch."""
    while kept:
        kept.popitem()[1].close()
    gc.collect()
    return {}


def _play(
    ways: Mapping[str, Callable[[Setting], Batch]], kept: dict[Setting, Batch], seconds: float, **options: Any
) -> dict[str, Any]:
    """Play whole batches for at least `seconds`. The environments are kept for the next round, and warmed up before the
    first.
    """
    setting = Setting(**options)
    if setting not in kept:
        kept[setting] = ways[setting.way](setting)
        warm = time.perf_counter()
        kept[setting].play()
        while time.perf_counter() - warm < seconds * WARM_SHARE:
            kept[setting].play()
    batch, batches = kept[setting], 0
    processes = getattr(batch, "processes", ())
    gc.collect()
    seen = next(_evaluated)
    cpu, began = time.process_time() + _cpu_of(processes), time.perf_counter()
    while True:
        right = batch.play()
        batches += 1
        wall = time.perf_counter() - began
        if right != setting.envs:
            raise RuntimeError(f"{right} of {setting.envs} episodes were answered right; expected all")
        if wall >= seconds:
            break
    cpu = time.process_time() + _cpu_of(processes) - cpu
    steps, calls = batches * setting.envs * setting.turns, batches * setting.envs * (setting.turns - 1)
    seen = next(_evaluated) - seen - 1
    if seen != calls and getattr(batch, "counted", not processes):  # A process counts its own.
        raise RuntimeError(f"{seen} calls were run; expected {calls}")
    waited = getattr(batch, "waited", None)  # Seconds of one batch's calls, where they differ.
    in_flight = (batches * waited if waited is not None else calls * setting.latency) / wall
    least = getattr(batch, "least", setting.latency * (setting.turns - 1))
    return {
        "cpu_us": cpu / steps * 1e6,
        "wall_us": wall / steps * 1e6,
        "in_flight": in_flight,
        "batch_s": wall / batches,
        "least_s": least,
    }


def _open(ways: Mapping[str, Callable[[Setting], Batch]], kept: dict[Setting, Batch], **options: Any) -> dict[str, Any]:
    """Return the CPU seconds to create the environments, without opening episodes."""
    setting = Setting(**options)
    gc.collect()
    began = time.process_time()
    batch = ways[setting.way](setting)
    cpu = time.process_time() - began
    batch.close()
    return {"cpu_s": cpu}


def _weigh(
    ways: Mapping[str, Callable[[Setting], Batch]], kept: dict[Setting, Batch], **options: Any
) -> dict[str, Any]:
    """Return the bytes of each environment with an open episode."""
    setting = Setting(**options)
    warm = ways[setting.way](Setting(setting.way, min(setting.envs, WARM_ENVS)))
    warm.play()
    gc.collect()
    before = _resident()
    batch = ways[setting.way](setting)
    batch.begin()
    gc.collect()
    after = _resident()
    batch.close()
    warm.close()
    return {"bytes": (after - before) / setting.envs}


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {"play": _play, "open": _open, "weigh": _weigh, "forget": _forget}


def _resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_of(processes: Any) -> float:
    """Return the CPU seconds of other processes of this side."""
    ticks = 0
    for number in processes:
        with open(f"/proc/{number}/stat") as file:
            ticks += sum(int(field) for field in file.read().rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")
