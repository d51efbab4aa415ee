"""Train a learner to imitate token rows, step by step. The cold start and supervised fine-tuning use this.

Not here: the choice of rows (`trainers.sft`, `setup.cold_start`).
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from palaestra.episode import TokenRow
from palaestra.errors import ConfigError
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.learn.forward import micro_batches, token_logprobs
from palaestra.trainers.learn.learner import Learner, RunConfigT
from palaestra.trainers.learn.packing import pack_rows


class Imitation:
    """A learner with the rows that it imitates, some in each step. Each epoch has a new order of the rows."""

    def __init__(self, learner: Learner[SFTConfig], rows: Sequence[TokenRow]) -> None:
        """Prepare the rows. If the learner has already taken steps, it continues with the row after its last one."""
        if not rows:
            raise ConfigError("there is nothing to imitate: no demonstration was given")
        self.learner, self._rows = learner, rows
        # A batch never holds a row twice, even with few rows.
        self._size = min(learner.config.batch_rows, len(rows))
        # Enough steps for `epochs` passes over all rows; the last batch may begin another pass.
        learner.steps = -(-learner.config.epochs * len(rows) // self._size)
        order = _shuffled(rows, np.random.default_rng([learner.config.seed, 1]))
        self._order = islice(order, learner.step * self._size, None)

    @property
    def epoch_steps(self) -> int:
        """Return the number of steps of one pass over all rows."""
        return -(-len(self._rows) // self._size)

    def step(self, rate: float | None = None) -> dict[str, float]:
        """Train on the next rows and return the metrics, including the loss per token.

        `rate` is the factor of the learning rates; if it is None, the schedule gives the factor.
        """
        learner = self.learner
        metrics = imitate(learner, [next(self._order) for _ in range(self._size)], rate)
        learner.step += 1
        learner.torn = False
        return {**metrics, "epoch": learner.step * self._size // len(self._rows)}


def _shuffled(rows: Sequence[TokenRow], rng: np.random.Generator) -> Iterator[TokenRow]:
    """Yield the rows in a new order in each epoch. (A method would keep its learner alive, with the moments.)"""
    while True:
        for index in rng.permutation(len(rows)):
            yield rows[index]


def imitate(learner: Learner[RunConfigT], rows: Sequence[TokenRow], rate: float | None = None) -> dict[str, float]:
    """Take one optimizer step that makes the sampled tokens of these rows likelier. `learner.step` does not change.

    `rate` is the factor of the learning rates; if it is None, the schedule gives the factor. Return the metrics,
    including the loss per token.
    """
    config = learner.config.optimizer
    rate = learner.rate if rate is None else rate
    packed = pack_rows(rows).to(next(learner.model.parameters()).device)
    tokens, total = int(packed.sampled_N.sum()), 0.0
    for micro in micro_batches(learner.model, packed, config.micro_batch_tokens):
        with learner.computing():
            loss = -token_logprobs(learner.model, micro).logprobs_N.sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    norm = learner.descend(rate)
    return {
        "loss": total,
        "num_tokens": tokens,
        "grad_norm": norm or 0.0,
        "skipped_steps": float(norm is None),
        "learning_rate": config.learning_rate * rate,
    }
