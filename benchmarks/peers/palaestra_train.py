"""palaestra's side of `make bench-train`: the built-in engine, then the trainer's own step.

A turn's tool runs in a thread as soon as the turn has ended, and its row plays on as soon as it has answered, as in the
arena. Left out: what an environment costs beside its tool, some 20 microseconds a call (`make bench-envs`).
"""

import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import count
from typing import Any

import numpy as np
import torch
from line import answer_requests
from training import RESULT, Case, Clock, build, peak_gb, prompts, reward, wait

from palaestra import Attempt, Ending, Episode, Request, Start, Task, TokenRow
from palaestra.agents import Agent
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.onednn_linear import onednn_product

_rows = count()
MICRO_BATCH_TOKENS = {"small": 4096, "smollm2": 768}
"""Tokens of a micro-batch by model: the second has room for one group, so that activations stay small."""
MATRIX = 2048
"""Number of rows and columns of the matrices for the measurement of a core's rate."""


class Row:
    """Token ids of one episode, and which of them were sampled."""

    def __init__(self, prompt: list[int]) -> None:
        self.number, self.turn = next(_rows), 0
        self.ids, self.logprobs, self.versions = list(prompt), [0.0] * len(prompt), [-1] * len(prompt)

    def read(self, ids: list[int], logprobs: list[float] | None = None, versions: list[int] | None = None) -> None:
        """Append sampled or given tokens."""
        self.ids += ids
        self.logprobs += logprobs or [0.0] * len(ids)
        self.versions += versions or [-1] * len(ids)

    def episode(self, group: int) -> Episode:
        """Return the row as an episode for the trainer."""
        versions = np.array(self.versions)
        row = TokenRow(np.array(self.ids, np.int32), versions >= 0, np.array(self.logprobs, np.float32), versions)
        value = reward([n for n, version in zip(self.ids, self.versions, strict=True) if version >= 0])
        attempt = Attempt(Task("", id=str(group)), (), "", (), self.turn)
        start = Start(group, self.number, group=group)
        return Episode(start, attempt, (row,), Ending.ANSWERED, value, {"success": value})


def play(engine: TorchEngine, case: Case, given: list[list[int]], pool: ThreadPoolExecutor) -> list[Episode]:
    """Play all episodes at once."""
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
            micro_batch_tokens=MICRO_BATCH_TOKENS[case.model],
            beta=0.0,
            slots=slots,
        )
        self.case, self.engine = case, TorchEngine(model, (), slots=slots)
        self.learner = Learner(Agent(self.engine), model, config)
        self.pool = ThreadPoolExecutor(slots)

    def step(self, number: int) -> float:
        """Play, learn and publish; return the CPU seconds of learning."""
        case, learner = self.case, self.learner
        episodes = play(self.engine, case, prompts(case, number), self.pool)
        self.engine.release()  # As the trainer does before it learns; `publish` reclaims it.
        sampled = sum(episode.sampled_tokens for episode in episodes)
        if sampled != (expected := case.prompts * case.rollouts * case.turns * case.turn_tokens):
            raise RuntimeError(f"{sampled} tokens were sampled; expected {expected}")
        played = tuple(Scored(episode, {"outcome": episode.reward or 0.0}) for episode in episodes)
        samples = tuple(Sample(place, place // case.rollouts) for place in range(len(episodes)))
        batch, clock = Batch(number, played, samples), Clock()
        clock.begin()
        scores = score_batch(learner, batch)
        update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)
        learner.publish()
        return clock.end()["cpu_s"]


def learning_flops(model: Any, case: Case) -> float:
    """Return the floating-point operations of the forward and backward pass of a step. A prompt counts once for its
    group, and so does what is computed twice; the optimizer's do not count.
    """
    config, head = model.config, model.get_output_embeddings().weight.numel()
    sampled = case.turns * case.turn_tokens
    own = sampled + (case.turns - 1) * RESULT - 1  # The last token is predicted and not read.
    tokens = case.prompt_tokens + case.rollouts * own
    pairs = case.prompt_tokens**2 / 2 + case.rollouts * (own * case.prompt_tokens + own**2 / 2)
    layers = sum(weight.numel() for weight in model.base_model.layers.parameters())
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    return 6.0 * case.prompts * (layers * tokens + head * case.rollouts * sampled + attention * pairs)


def matrix_rate() -> float:
    """Return the most FLOPs a CPU second that one core makes of large float32 matrices, by oneDNN or MKL."""
    left, right = torch.rand(MATRIX, MATRIX), torch.rand(MATRIX, MATRIX)
    best = float("inf")
    for _ in range(5):
        for multiply in (torch.mm, onednn_product):
            begin = time.process_time()
            multiply(left, right)
            best = min(best, time.process_time() - begin)
    return 2 * MATRIX**3 / best


def train(kept: dict[Case, Trainer], case_values: dict[str, Any], begin: int) -> dict[str, float]:
    """Take two steps, of which the first is not measured."""
    case = Case(**case_values)
    if case not in kept:
        kept.clear()
        kept[case] = Trainer(build(case.model), case)
    clock, learning = Clock(), 0.0
    for number in (begin, begin + 1):
        clock.begin()
        learning = kept[case].step(number)
    figures = clock.end() | {"learn_cpu_s": learning, "peak_gb": peak_gb()}
    return figures | {"matrix_share": learning_flops(build(case.model), case) / learning / matrix_rate()}


def main() -> None:
    """Answer requests until the benchmark ends."""
    torch.set_num_threads(1)
    kept = dict[Case, Trainer]()
    answer_requests(("palaestra", "torch", "transformers"), {"train": lambda **request: train(kept, **request)})


if __name__ == "__main__":
    main()
