"""Supervised fine-tuning on what an agent wrote: assistant tokens only, prompts and tool results are context.

Matrices are stepped by Muon, embeddings and norms by AdamW: a model that starts from random weights learns to copy
several times sooner than with AdamW alone. Left out: saving, and when to stop, which are the caller's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from palaestra.episode import TokenRow
from palaestra.errors import ConfigError
from palaestra.trainers.batch import pack_rows
from palaestra.trainers.forward import micro_batches, token_logprobs


@dataclass(frozen=True, slots=True)
class SFTConfig:
    """How demonstrations are learned. The defaults suit a tiny model from random weights."""

    batch_rows: int = 32
    """Demonstrations an optimizer step."""
    matrix_learning_rate: float = 0.03
    """Muon's, for the hidden matrices."""
    learning_rate: float = 4e-3
    """AdamW's, for embeddings, norms and the head."""
    warmup_steps: int = 20
    """Steps over which both rates rise."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    micro_batch_tokens: int = 4096
    """Padded tokens in one pass; changes speed, not the result."""

    def __post_init__(self) -> None:
        if min(self.batch_rows, self.learning_rate, self.matrix_learning_rate, self.micro_batch_tokens) <= 0:
            raise ConfigError(f"{self}: batch_rows, both learning rates and micro_batch_tokens must be above 0")


class Imitation:
    """A model that imitates rows, step by step; `rate` scales both learning rates."""

    def __init__(self, model: Any, rows: Sequence[TokenRow], config: SFTConfig, seed: int) -> None:
        if not rows:
            raise ConfigError("there is nothing to imitate: no demonstration was given")
        self._model, self._rows, self._config = model, rows, config
        embedding = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
        matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embedding]
        others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embedding]
        self._optimizers = [
            (torch.optim.Muon(matrices, config.matrix_learning_rate, weight_decay=0.0), config.matrix_learning_rate),
            (
                torch.optim.AdamW(others, config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
                config.learning_rate,
            ),
        ]
        self._order = self._shuffled(np.random.default_rng([seed, 1]))
        self.steps = 0

    def step(self, rate: float = 1.0) -> float:
        """Imitate the next `batch_rows` rows; returns the loss a token."""
        config = self._config
        batch = pack_rows([next(self._order) for _ in range(config.batch_rows)])
        batch = batch.to(next(self._model.parameters()).device)
        tokens, total = int(batch.sampled_N.sum()), 0.0
        for micro in micro_batches(batch, config.micro_batch_tokens):
            loss = -token_logprobs(self._model, micro).sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
        self.steps += 1
        for optimizer, base in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = base * rate * min(1.0, self.steps / config.warmup_steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return total

    def _shuffled(self, rng: np.random.Generator) -> Iterator[TokenRow]:
        """The rows in a new order each time round."""
        while True:
            for index in rng.permutation(len(self._rows)):
                yield self._rows[index]
