"""Measure how much longer a training step of Reagent-R is with a judge than without: `make bench-judge`

Both sides train the same agent on the same tasks, with tools that answer after `tool_ms`. Their steps alternate, so
that the load of the machine affects both. The judge is a server in a separate process that answers each question after
`judge_ms`. A step with the judge may take at most 1.15 times as long as one without, if the latter takes a second or
more. The weight of the score is 0, so both sides learn and play the same.

Exit status 1 when the target is missed.
"""

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from asynchronous import ENV, Slow, raised
from peers.findings import Report, target

import palaestra
from palaestra.agents.local_model import load
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.samplers.uniform import Uniform

TARGET = 1.15
"""Largest ratio of a step with a judge to one without."""
WARM = 2
"""Number of first steps that no figure includes."""
VERDICT = "<think>It did what it could.</think><critique>Search once more.</critique><score>0.5</score>"


@dataclass(frozen=True)
class Options:
    """Train one agent twice."""

    model: Path | None = None
    """Folder of the agent; by default a tiny agent is made."""
    judge_ms: float = 100
    """Time in which the judge answers a question."""
    tool_ms: float = 400
    """Time of each tool call."""
    steps: int = 14
    """Number of steps of each side."""
    num_prompts: int = 8
    """Number of tasks per step."""
    num_generations: int = 8
    """Number of episodes per task."""
    targets: bool = True
    """Exit with status 1 if the target is missed."""
    out: Path = Path(__file__).parent / "results" / "judge.json"
    """File for the figures."""


def answer_late(seconds: float, ports: Any) -> None:
    """Serve chat completions: the same verdict to each question, after a delay."""
    choice = {"index": 0, "message": {"role": "assistant", "content": VERDICT}, "finish_reason": "stop"}
    body = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                header = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                await reader.readexactly(int(header.partition("content-length:")[2].split("\r\n")[0] or 0))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()
                return
            await asyncio.sleep(seconds)
            writer.write(head + body)

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


@contextmanager
def slow_judge(seconds: float) -> Iterator[str]:
    """Run the server, and yield its base URL. It ends with the block or with this process."""
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    process = context.Process(target=answer_late, args=(seconds, ports), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ports.get(timeout=60)}/v1"
    finally:
        process.terminate()
        process.join(10)


def steps(options: Options, model: Path, url: str, stack: ExitStack) -> Iterator[dict[str, float]]:
    """Yield the figures of each step; without a URL there is no judge."""
    slots = options.num_prompts * options.num_generations
    made = tiny_config(ENV, model=str(model), steps=options.steps, num_prompts=options.num_prompts,
                       num_generations=options.num_generations, slots=slots, ordered=False, device="cpu")  # fmt: skip
    recipe = replace(find_recipe("reagent-none"), sampler=Uniform(), shaping=made.recipe.shaping)
    if url:
        recipe = replace(recipe, judge=ReasoningReward((url,), score_weight=0.0))
    local = load(str(model), slots=slots, device="cpu")
    arena = stack.enter_context(closing(palaestra.arena(ENV, slots, ordered=False)))
    stack.enter_context(closing(local.agent.engine))
    learner = Learner(local.agent, local.model, replace(made, recipe=recipe))
    running = stack.enter_context(closing(train_learner(learner, Slow(arena, options.tool_ms / 1000))))
    while True:
        began = time.perf_counter(), time.process_time()
        figures = next(running).metrics
        took = {"wall": time.perf_counter() - began[0], "cpu": time.process_time() - began[1]}
        yield took | {name: value for name, value in figures.items() if name.startswith("judge/")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    torch.set_num_threads(1)
    report = Report(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = options.model or raised(folder / "model")
        url = stack.enter_context(slow_judge(options.judge_ms / 1000))
        sides = steps(options, model, "", stack), steps(options, model, url, stack)
        both = [(next(sides[0]), next(sides[1])) for _ in range(options.steps)][WARM:]
    plain, judged = ([pair[side] for pair in both] for side in (0, 1))
    found = {
        name: {what: round(statistics.median(one[what] for one in side), 4) for what in ("wall", "cpu")}
        for name, side in (("without", plain), ("with", judged))
    }
    for name, figures in found.items():
        print(f"{name:<10}" + "  ".join(f"{key} {value:.3g} s" for key, value in figures.items()))
    ratio = statistics.median(one["wall"] / other["wall"] for other, one in both)
    # A shorter step is no case for the target: one answer after the last episode cannot be hidden.
    bound = TARGET if found["without"]["wall"] >= 1.0 else None
    targets = [
        target("a step with a judge, by one without", ratio, most=bound),
        target("CPU of a step with a judge, by one without", found["with"]["cpu"] / found["without"]["cpu"]),
        target("episodes without a verdict", sum(one["judge/dropped"] for one in judged), most=0),
    ]
    rounds = [[round(one["wall"], 3) for one in pair] for pair in both]
    return report.conclude({"medians": found, "ratio": ratio, "wall_rounds": rounds}, targets)


if __name__ == "__main__":
    sys.exit(main())
