"""palaestra's side of `make bench-train`: the built-in engine, then the trainer's own step.

A turn's tool runs in a thread as soon as the turn has ended, and its row plays on as soon as it has answered, as in the
arena. Left out: what an environment costs beside its tool, some 20 microseconds a call (`make bench-envs`).
"""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import count
from typing import Any

import numpy as np
import torch
from line import answer_requests
from training import Case, Clock, build, prompts, reward, wait

from palaestra import Attempt, Ending, Episode, Request, Start, Task, TokenRow
from palaestra.agents import Agent
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update

_rows = count()
MICRO_BATCH_TOKENS = 4096


class Row:
    """What one rollout has of ids, and what was sampled of them."""

    def __init__(self, prompt: list[int]) -> None:
        self.number, self.turn = next(_rows), 0
        self.ids, self.logprobs, self.versions = list(prompt), [0.0] * len(prompt), [-1] * len(prompt)

    def read(self, ids: list[int], logprobs: list[float] | None = None, versions: list[int] | None = None) -> None:
        """Go on by what was sampled, or given."""
        self.ids += ids
        self.logprobs += logprobs or [0.0] * len(ids)
        self.versions += versions or [-1] * len(ids)

    def episode(self, group: int) -> Episode:
        """As the trainer takes it."""
        versions = np.array(self.versions)
        row = TokenRow(np.array(self.ids, np.int32), versions >= 0, np.array(self.logprobs, np.float32), versions)
        value = reward([n for n, version in zip(self.ids, self.versions, strict=True) if version >= 0])
        attempt = Attempt(Task("", id=str(group)), (), "", (), self.turn)
        start = Start(group, self.number, group=group)
        return Episode(start, attempt, (row,), Ending.ANSWERED, value, {"success": value})


def play(engine: TorchEngine, case: Case, given: list[list[int]], pool: ThreadPoolExecutor) -> list[Episode]:
    """All rollouts at once."""
    rows = [Row(prompt) for prompt in given for _ in range(case.rollouts)]
    running: dict[int, Row] = {}
    calls: dict[Future[list[int]], Row] = {}

    def ask(row: Row) -> None:
        start = Start(0, row.number)
        request = Request(row.number, start, row.turn, (), (), list(row.ids), case.turn_tokens)
        running[engine.submit(request)] = row

    for row in rows:
        ask(row)
    while running or calls:
        for future in wait_for(calls, None if not running else 0, FIRST_COMPLETED).done if calls else ():
            row = calls.pop(future)
            row.read(future.result())
            ask(row)
        for completion in engine.poll():
            row = running.pop(completion.ticket)
            row.read(completion.ids, completion.logprobs, completion.versions)
            row.turn += 1
            if row.turn < case.turns:
                calls[pool.submit(wait, case.latency)] = row
    return [row.episode(number // case.rollouts) for number, row in enumerate(rows)]


class Trainer:
    """A learner of one case."""

    def __init__(self, model: Any, case: Case) -> None:
        slots = case.prompts * case.rollouts
        config = grpo_config(
            "palaestra/TwoHop-v0",
            "grpo-t",
            learning_rate=1e-6,
            steps=10**6,
            num_mini_batches=1,
            micro_batch_tokens=MICRO_BATCH_TOKENS,
            beta=0.0,
            slots=slots,
        )
        self.case, self.engine = case, TorchEngine(model, (), slots=slots)
        self.learner = Learner(Agent(self.engine), model, config)
        self.pool = ThreadPoolExecutor(slots)

    def step(self, number: int) -> None:
        """Play, learn, publish."""
        case, learner = self.case, self.learner
        episodes = play(self.engine, case, prompts(case, number), self.pool)
        sampled = sum(episode.sampled_tokens for episode in episodes)
        if sampled != (expected := case.prompts * case.rollouts * case.turns * case.turn_tokens):
            raise RuntimeError(f"{sampled} tokens were sampled; expected {expected}")
        played = tuple(Scored(episode, {"outcome": episode.reward or 0.0}) for episode in episodes)
        samples = tuple(Sample(place, place // case.rollouts) for place in range(len(episodes)))
        batch = Batch(number, played, samples)
        scores = score_batch(learner, batch)
        update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)
        learner.publish()


def train(model: Any, kept: dict[Case, Trainer], asked: dict[str, Any], begin: int) -> dict[str, float]:
    """Two steps, of which the first is not measured."""
    case = Case(**asked)
    if case not in kept:
        kept[case] = Trainer(model, case)
    clock = Clock()
    for number in (begin, begin + 1):
        clock.begin()
        kept[case].step(number)
    return clock.end()


def main() -> None:
    """Answer until the benchmark ends."""
    torch.set_num_threads(1)
    model, kept = build(), dict[Case, Trainer]()
    answer_requests(("palaestra", "torch", "transformers"), {"train": lambda **asked: train(model, kept, **asked)})


if __name__ == "__main__":
    main()
