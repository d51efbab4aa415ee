"""Supervised fine-tuning on what an agent wrote: assistant tokens only, prompts and tool results are context.

    demonstrations  ->  sft_rows(chat, episodes)  ->  Imitation(learner, rows)  ->  a run of steps

Left out: which episodes are worth it (`selection`), and reading them (`demonstrations`).
"""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from palaestra.agents import Chat
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import LocalModel, find_device, load, serve
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.episode import Episode, TokenRow
from palaestra.errors import ConfigError, PalaestraError, UsageError
from palaestra.trainers.checkpoint import open_saved, restore
from palaestra.trainers.demonstrations import Demonstrations, demonstrations, in_format
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.going_on import keep_model, newest_of, recorded
from palaestra.trainers.imitated_turns import as_thought, turns_that_worked
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.learner import Learner
from palaestra.trainers.opening import as_opened, check_scale, compute_type, settled, with_adapter
from palaestra.trainers.packed import pack_rows
from palaestra.trainers.progress import Progress
from palaestra.trainers.run import Run
from palaestra.trainers.sft_config import SFTConfig
from palaestra.trainers.synopsis import synopsis


@dataclass(frozen=True, slots=True)
class SFTRows:
    """What is imitated."""

    rows: tuple[TokenRow, ...]
    truncated: int
    """Rows that were cut off at the end, the empty ones among them."""
    emptied: int
    """Rows in which nothing that the agent said was left; they are not among `rows`."""

    @property
    def digest(self) -> str:
        """Of the tokens: a run that is gone on with must find the same."""
        found = blake2b(digest_size=12)
        for row in self.rows:
            found.update(row.ids.tobytes() + row.sampled.tobytes())
        return found.hexdigest()


class Imitation:
    """A learner that imitates rows, step by step. Each time round they come in another order."""

    def __init__(self, learner: Learner[SFTConfig], rows: Sequence[TokenRow]) -> None:
        """A learner that has taken steps goes on with the rows that come next."""
        if not rows:
            raise ConfigError("there is nothing to imitate: no demonstration was given")
        self.learner, self._rows = learner, rows
        # A batch never holds a row twice, however few there are.
        self._size = min(learner.config.batch_rows, len(rows))
        # So many that every row has come `epochs` times; the last batch may begin another round.
        learner.steps = -(-learner.config.epochs * len(rows) // self._size)
        order = self._shuffled(np.random.default_rng([learner.config.seed, 1]))
        self._order = islice(order, learner.step * self._size, None)

    @property
    def epoch_steps(self) -> int:
        """Steps in which every row has come once."""
        return -(-len(self._rows) // self._size)

    def step(self, rate: float | None = None) -> dict[str, float]:
        """Imitate the next rows; `rate` is the share of the learning rates, the schedule's by default.

        Returns figures, the loss a token among them.
        """
        learner, config = self.learner, self.learner.config.optimizer
        rate = learner.rate if rate is None else rate
        packed = pack_rows([next(self._order) for _ in range(self._size)])
        packed = packed.to(next(learner.model.parameters()).device)
        tokens, total = int(packed.sampled_N.sum()), 0.0
        for micro in micro_batches(learner.model, packed, config.micro_batch_tokens):
            with learner.computing():
                loss = -token_logprobs(learner.model, micro).logprobs_N.sum() / tokens
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = learner.descend(rate)
        learner.step += 1
        learner.torn = False
        return {
            "loss": total,
            "num_tokens": tokens,
            "grad_norm": norm or 0.0,
            "skipped_steps": float(norm is None),
            "learning_rate": config.learning_rate * rate,
            "epoch": learner.step * self._size // len(self._rows),
        }

    def progress(self) -> Iterator[Progress]:
        """Imitate to the last epoch; one Progress a step."""
        while self.learner.step < self.learner.steps:
            self.learner.require_gradients()
            began = time.perf_counter()
            figures = self.step()
            note = "an optimizer step was skipped: its gradient was no number" * bool(figures["skipped_steps"])
            figures |= {"step_time": time.perf_counter() - began}
            yield Progress("imitation", self.learner.step, self.learner.steps, figures, note)

    def _shuffled(self, rng: np.random.Generator) -> Iterator[TokenRow]:
        """The rows in a new order each time round."""
        while True:
            for index in rng.permutation(len(self._rows)):
                yield self._rows[index]


def imitate(run: Run, interrupts: Interrupts | None = None) -> Generator[Progress, None, None]:
    """Take a run of imitation from where it stands to its end."""
    config, found = run.config, newest_of(run)
    if not isinstance(config, SFTConfig):
        raise UsageError(f"{run.folder} holds a run of the kind {config.KIND}, which imitates nothing")
    check_scale(config)
    if (chosen := settled(config, run.folder)[0]) != config:
        run.settle(config := chosen)
    shown = demonstrations(config.files)
    opened = partial(open_student, config, shown)
    local = open_saved(found, opened, config.model) if found else opened(config.model)
    shown, target = in_format(shown, config.format, local.tokenizer)
    if target != config.format:
        config = replace(config, format=target)
        run.settle(config)
    assert local.agent.chat is not None, "a model has a chat"
    most = longest_row(local.model, config)
    made = sft_rows(
        local.agent.chat,
        shown.episodes,
        most,
        strip_thinking=config.thinking == "strip",
        only_worked=config.imitated_turns == "worked",
    )
    for note in (*run.notes, *shown.notes, *_said(shown, made, most)):
        yield Progress("episodes", 0, 0, note=note)
    if not made.rows:
        raise UsageError(
            f"no row has a token to imitate among its first {most}; a larger max_row_tokens may help, or, where every "
            "turn has a call that failed, imitated_turns all"
        )
    if found is None:
        learner = Learner(local.agent, local.model, config, state={"rows": made.digest})
    elif found.state != {"rows": made.digest}:
        raise UsageError(f"{', '.join(config.files)} no longer hold what {found.path} has imitated; put them back")
    else:
        learner = restore(found, local, config)
        yield Progress("episodes", 0, 0, note=f"going on after step {found.step}")
    run.rewind(learner.step)
    imitation = Imitation(learner, made.rows)
    yield Progress("imitation", learner.step, learner.steps, note=synopsis(learner))
    every = config.save.checkpoint_every or imitation.epoch_steps
    stage = imitation.progress()
    yield from recorded(run, learner, stage, lambda step: step % every == 0, interrupts or Interrupts())
    keep_model(run, learner)
    losses = [line["loss"] for line in run.metrics]
    run.finish(
        {
            "steps": learner.step,
            **shown.counts,
            "rows": len(made.rows),
            "rows_truncated": made.truncated,
            "rows_emptied": made.emptied,
            "tokens": sum(map(len, made.rows)),
            "sampled_tokens": sum(int(row.sampled.sum()) for row in made.rows),
            "loss_first": losses[0],
            "loss_last": losses[-1],
        }
    )


def open_student(config: SFTConfig, shown: Demonstrations, name: str) -> LocalModel:
    """The model that learns: from disk or hub, or the tiny one with a tokenizer made of these very episodes."""
    if name != "tiny":
        local = load(name, slots=1, seed=config.seed, device=config.device, dtype=compute_type(config))
        return with_adapter(local, config)
    device = find_device(config.device)
    texts = (message["content"] for _, episode in shown.episodes for message in episode.attempt.messages)
    tokenizer = tiny_tokenizer(text for text in texts if isinstance(text, str))
    local = serve(tiny_model(len(tokenizer), seed=config.seed).to(device), tokenizer, slots=1, seed=config.seed)
    return as_opened(local, config, 1)


def _said(shown: Demonstrations, made: SFTRows, most: int) -> Iterator[str]:
    """What is imitated, in words, and what was cut."""
    tokens, said = sum(map(len, made.rows)), sum(int(row.sampled.sum()) for row in made.rows)
    known = ", ".join(f"{count} of {env_id}" for env_id, count in shown.environments.items())
    yield f"{known}: {len(made.rows)} rows, {tokens:,} tokens, {said:,} of them the agent's"
    if made.truncated:
        yield f"{made.truncated} rows are longer than {most} tokens; they were cut off"
    if made.emptied:
        yield f"{made.emptied} rows are left out: nothing to imitate was left in them"


def sft_rows(
    chat: Chat,
    episodes: Iterable[tuple[str, Episode]],
    most: int,
    *,
    strip_thinking: bool = False,
    only_worked: bool = False,
) -> SFTRows:
    """Episodes as the student reads them, in rows of at most `most` tokens. Each comes with the words for its place."""
    kept: list[TokenRow] = []
    truncated = emptied = 0
    for place, episode in episodes:
        try:
            messages = as_thought(episode.attempt.messages, chat.opened_thinking, strip_thinking)
            taught = turns_that_worked(episode) if only_worked else None
            rows = written_rows(chat, messages, episode.tools, taught)
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
