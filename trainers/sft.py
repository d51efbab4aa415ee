"""Supervised fine-tuning on what an agent wrote: assistant tokens only, prompts and tool results are context.

    taught(episode)  ->  sft_rows(chat, episodes)  ->  Imitation(model, rows, config)  ->  study(imitation, ...)

A folder then holds config.json, metrics.jsonl (one line a step), checkpoints/epoch-N/ (a model each, until the last
epoch), model/ and at the end summary.json. Left out: which episodes are worth it (`selection`), and going on with a run
that was stopped: its last checkpoint is a model to begin another with.
"""

import json
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.agents import Chat
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import LocalModel, export
from palaestra.episode import Ending, Episode, TokenRow
from palaestra.errors import ConfigError, PalaestraError, TrainingHalted, UsageError
from palaestra.trainers.batch import pack_rows
from palaestra.trainers.durable import append_line, remove_folder, whole_folder, write_text
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.progress import Progress
from palaestra.trainers.sft_config import SFTConfig


@dataclass(frozen=True, slots=True)
class SFTRows:
    """What is imitated."""

    rows: tuple[TokenRow, ...]
    truncated: int
    """Rows that were cut off at the end, the empty ones among them."""
    emptied: int
    """Rows in which nothing that the agent said was left; they are not among `rows`."""


class Imitation:
    """A model that imitates rows, step by step. Each time round they come in another order."""

    def __init__(self, model: Any, rows: Sequence[TokenRow], config: SFTConfig) -> None:
        if not rows:
            raise ConfigError("there is nothing to imitate: no demonstration was given")
        self.model, self.config, self.steps = model, config, 0
        self._rows = rows
        self._order = self._shuffled(np.random.default_rng([config.seed, 1]))
        # A batch never holds a row twice, however few there are.
        self._size = min(config.batch_rows, len(rows))
        self._optimizers = [(optimizer, optimizer.param_groups[0]["lr"]) for optimizer in _optimizers(model, config)]

    @property
    def steps_in_all(self) -> int:
        """Steps in which every row has come `epochs` times; the last batch may begin another round."""
        return -(-self.config.epochs * len(self._rows) // self._size)

    @property
    def rounds(self) -> int:
        """How often every row has come so far."""
        return self.steps * self._size // len(self._rows)

    def step(self, rate: float = 1.0) -> dict[str, float]:
        """Imitate the next rows; `rate` scales the learning rates. Returns figures, the loss a token among them."""
        config = self.config
        batch = pack_rows([next(self._order) for _ in range(self._size)])
        batch = batch.to(next(self.model.parameters()).device)
        tokens, total = int(batch.sampled_N.sum()), 0.0
        for micro in micro_batches(batch, config.micro_batch_tokens):
            loss = -token_logprobs(self.model, micro).sum() / tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise TrainingHalted(
                f"step {self.steps + 1} of imitation has a loss of {total} and a gradient of norm {norm}; a lower "
                "learning_rate may help"
            )
        self.steps += 1
        for optimizer, base in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = base * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"loss": total, "num_tokens": tokens, "grad_norm": norm, "learning_rate": config.learning_rate * rate}

    def _shuffled(self, rng: np.random.Generator) -> Iterator[TokenRow]:
        """The rows in a new order each time round."""
        while True:
            for index in rng.permutation(len(self._rows)):
                yield self._rows[index]


def rate_at(step: int, steps: int, config: SFTConfig) -> float:
    """Share of the learning rate in a step, counted from 0: up in equal parts, then along a cosine, or level."""
    rising = int(config.warmup_share * steps)
    if step < rising:
        return (step + 1) / rising
    if config.lr_schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def unfit(episode: Episode) -> str:
    """Why an episode cannot be imitated, in words that end a sentence; empty if it can."""
    turns = [message for message in episode.attempt.messages if message["role"] == "assistant"]
    if episode.reward is None:
        return "are BROKEN"
    if episode.ending is Ending.LENGTH_LIMIT:  # Its last turn was cut, and imitating it would teach to stop there.
        return "ran out of tokens"
    if not turns:
        return "have no turn of an agent"
    if any(not isinstance(message.get("content"), str) for message in turns):
        return "have a turn that is no text"
    if any(message["role"] == "assistant" for message in episode.start.prefix):  # Context, never trained on.
        return "begin with turns of an earlier attempt"
    return ""


def sft_rows(chat: Chat, episodes: Iterable[tuple[str, Episode]], most: int) -> SFTRows:
    """Episodes as the student reads them, in rows of at most `most` tokens. Each comes with the words for its place."""
    kept: list[TokenRow] = []
    truncated = emptied = 0
    for place, episode in episodes:
        try:
            rows = written_rows(chat, episode.attempt.messages, episode.tools)
        except PalaestraError as error:
            raise UsageError(f"{place}: {error}") from error
        except Exception as error:  # Templates raise what they like for a dialogue that they refuse.
            raise UsageError(
                f"{place}: the student's chat template cannot show this dialogue ({type(error).__name__}: {error}); "
                "choose another model, or put another chat_template.jinja into the model folder"
            ) from error
        for row in rows:
            short = truncate(row, most)
            truncated += len(short) < len(row)
            if short.sampled.any():
                kept.append(short)
            else:
                emptied += 1
    return SFTRows(tuple(kept), truncated, emptied)


def truncate(row: TokenRow, most: int) -> TokenRow:
    """The first `most` tokens of a row."""
    if len(row) <= most:
        return row
    return replace(
        row, ids=row.ids[:most], sampled=row.sampled[:most], logprobs=row.logprobs[:most], versions=row.versions[:most]
    )


def longest_row(model: Any, config: SFTConfig) -> int:
    """`max_row_tokens`, or less where the model has not so many places."""
    places = getattr(model.config, "max_position_embeddings", None)
    return min(config.max_row_tokens, places) if isinstance(places, int) and places > 1 else config.max_row_tokens


def open_folder(folder: Path, content: Mapping[str, Any]) -> None:
    """Begin a run in a folder that holds none, with this as its config."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any((folder / name).exists() for name in ("config.json", "metrics.jsonl"))
        if not taken:
            (folder / "metrics.jsonl").open("x").close()  # Of two that begin at once, one is refused.
    except OSError as error:
        raise UsageError(f"the run folder {folder} cannot be made: {error.strerror or error}") from error
    if taken:
        raise UsageError(f"{folder} already holds a run; choose another folder with --run, or remove it")
    write_text(folder / "config.json", json.dumps(content, indent=2) + "\n")


def study(
    imitation: Imitation, local: LocalModel, folder: Path, interrupts: Interrupts | None = None
) -> Generator[Progress, None, list[float]]:
    """Imitate to the last epoch, writing each step and each epoch's model down; returns the loss of each step.

    An interrupt is obeyed at once, but while a model is written it waits.
    """
    config, steps, saved = imitation.config, imitation.steps_in_all, 0
    interrupts, losses = interrupts or Interrupts(), []
    while imitation.steps < steps:
        began = time.perf_counter()
        figures = imitation.step(rate_at(imitation.steps, steps, config))
        losses.append(figures["loss"])
        figures |= {"epoch": imitation.rounds, "step_time": time.perf_counter() - began}
        append_line(folder / "metrics.jsonl", json.dumps({"step": imitation.steps, **figures}))
        with interrupts.held():
            if imitation.steps == steps:
                _keep(local, folder / "model")
            elif imitation.rounds > saved:
                saved = imitation.rounds
                _keep(local, epoch_folder(folder, saved))
                remove_folder(epoch_folder(folder, saved - config.keep_checkpoints))
        interrupts.check()
        yield Progress("imitation", imitation.steps, steps, figures)
    return losses


def epoch_folder(folder: Path, epoch: int) -> Path:
    """Where a run keeps the model of an epoch."""
    return folder / "checkpoints" / f"epoch-{epoch}"


def last_epoch(folder: Path) -> Path | None:
    """The newest model that a run has kept, the final one if it is there."""
    if (folder / "model").is_dir():
        return folder / "model"
    numbers = [path.name.removeprefix("epoch-") for path in (folder / "checkpoints").glob("epoch-*")]
    found = [int(number) for number in numbers if number.isdigit()]
    return epoch_folder(folder, max(found)) if found else None


def _keep(local: LocalModel, path: Path) -> None:
    with whole_folder(path) as unfinished:
        export(local.model, local.tokenizer, unfinished)


def _optimizers(model: Any, config: SFTConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for hidden matrices and AdamW for the rest."""

    def adamw(parameters: list[Any]) -> torch.optim.Optimizer:
        betas = (0.9, config.adam_beta2)
        return torch.optim.AdamW(parameters, config.learning_rate, betas=betas, weight_decay=config.weight_decay)

    if config.optimizer == "adamw":
        return [adamw(list(model.parameters()))]
    outer = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    matrices = [weight for weight in model.parameters() if weight.ndim == 2 and id(weight) not in outer]
    others = [weight for weight in model.parameters() if weight.ndim != 2 or id(weight) in outer]
    muon = torch.optim.Muon(matrices, config.matrix_learning_rate, weight_decay=config.weight_decay)
    return [muon, adamw(others)]
