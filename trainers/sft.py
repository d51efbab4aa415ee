"""Supervised fine-tuning on an agent's turns: only its own tokens are trained on; prompts and results are context.

    demonstrations  ->  sft_rows(chat, episodes)  ->  Imitation(learner, rows)  ->  a run of steps

Not here: selecting the episodes (`data.selection`), and reading them (`data.demonstrations`).
"""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

from palaestra import formats
from palaestra.agents import Chat
from palaestra.agents.conversation import written_rows
from palaestra.agents.local_model import LocalModel, find_device, load, serve
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.agents.tool_prompt import show_tools
from palaestra.episode import Episode, TokenRow
from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.data.demonstrations import Demonstrations, demonstrations, in_format
from palaestra.trainers.data.imitated_turns import as_thought, turns_that_worked
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.checkpoint import open_saved, restore
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.run.session import RunSession
from palaestra.trainers.run.tracking import Trackers
from palaestra.trainers.setup.open_learner import keep_model, newest_checkpoint
from palaestra.trainers.setup.open_run import (
    as_opened,
    check_scale,
    compute_type,
    prompt_changes,
    settled,
    with_adapter,
)
from palaestra.trainers.setup.run_summary import synopsis


@dataclass(frozen=True, slots=True)
class SFTRows:
    """The token rows to imitate, and how many rows were cut or left out."""

    rows: tuple[TokenRow, ...]
    truncated: int
    """Number of rows that were cut off at the end, including the emptied ones."""
    emptied: int
    """Number of rows without any remaining token of the agent; they are not in `rows`."""

    @property
    def digest(self) -> str:
        """Return a digest of the tokens. A resumed run must have the same digest."""
        hasher = blake2b(digest_size=12)
        for row in self.rows:
            hasher.update(row.ids.tobytes() + row.sampled.tobytes())
        return hasher.hexdigest()


def train(
    run: Run, *, interrupts: Interrupts | None = None, on_progress: OnProgress = ignore
) -> Generator[Progress, None, None]:
    """Train a run of imitation from its present step to its end. Yield each step before it is logged and saved."""
    if run.finished:
        return
    with Trackers(run, on_progress) as trackers:
        imitation, about = open_imitation(run, on_progress)
        learner = imitation.learner
        checkpoint_every = learner.config.save.checkpoint_every or imitation.epoch_steps
        with RunSession(
            run, learner, lambda step: step % checkpoint_every == 0, interrupts, trackers, on_progress
        ) as session:
            while learner.step < learner.steps:
                with session.interruptible():
                    learner.require_gradients()
                    began = time.perf_counter()
                    metrics = imitation.step() | {"step_time": time.perf_counter() - began}
                    note = "an optimizer step was skipped: its gradient was no number" * bool(metrics["skipped_steps"])
                    step = Progress("imitation", learner.step, learner.steps, metrics, note)
                try:
                    yield step
                finally:
                    session.log(step)
                session.save_when_due()
        keep_model(run, learner)
        losses = [line["loss"] for line in run.metrics]
        run.finish({"steps": learner.step, **about, "loss_first": losses[0], "loss_last": losses[-1]})
        trackers.send()


def open_imitation(run: Run, on_progress: OnProgress) -> tuple[Imitation, dict[str, Any]]:
    """Return the imitation of a run, and numbers about its rows. The learner comes from the newest checkpoint; if there
    is none, it is new.
    """
    config, checkpoint = run.config, newest_checkpoint(run)
    if not isinstance(config, SFTConfig):
        raise UsageError(f"{run.folder} holds a run of the kind {config.KIND}, which imitates nothing")
    check_scale(config)
    if (chosen := settled(config, run.folder)[0]) != config:
        run.settle(config := chosen)
    dataset = demonstrations(config.files)
    open_base = partial(open_student, config, dataset)
    local = open_saved(checkpoint, open_base, config.model) if checkpoint else open_base(config.model)
    dataset, target = in_format(dataset, config.format, local.tokenizer)
    if target != config.format:
        config = replace(config, format=target)
        run.settle(config)
    if prompt_note := show_tools(local.tokenizer, target or formats.DEFAULT):
        run.notes.append(prompt_note)
    assert local.agent.chat is not None, "a model has a chat"
    longest = longest_row(local.model, config)
    imitated_rows = sft_rows(
        local.agent.chat,
        dataset.episodes,
        longest,
        strip_thinking=config.thinking == "strip",
        only_worked=config.imitated_turns == "worked",
    )
    for note in (*run.notes, *dataset.notes, *_notes(dataset, imitated_rows, longest)):
        on_progress(Progress("episodes", 0, 0, note=note))
    if not imitated_rows.rows:
        raise UsageError(
            f"no row has a token to imitate among its first {longest}; a larger max_row_tokens may help, or, where "
            "every turn has a call that failed, imitated_turns all"
        )
    if checkpoint is None:
        learner = Learner(local.agent, local.model, config, state={"rows": imitated_rows.digest})
    elif checkpoint.state != {"rows": imitated_rows.digest}:
        raise UsageError(f"{', '.join(config.files)} no longer hold what {checkpoint.path} has imitated; put them back")
    else:
        learner = restore(checkpoint, local, config)
        on_progress(Progress("episodes", 0, 0, note=f"going on after step {checkpoint.step}"))
    run.rewind(learner.step)
    imitation = Imitation(learner, imitated_rows.rows)
    on_progress(Progress("imitation", learner.step, learner.steps, note=synopsis(learner)))
    return imitation, {
        **dataset.counts,
        "rows": len(imitated_rows.rows),
        "rows_truncated": imitated_rows.truncated,
        "rows_emptied": imitated_rows.emptied,
        "tokens": sum(map(len, imitated_rows.rows)),
        "sampled_tokens": sum(int(row.sampled.sum()) for row in imitated_rows.rows),
    }


def open_student(config: SFTConfig, dataset: Demonstrations, name: str) -> LocalModel:
    """Open the model to train: from disk or a hub, or a new tiny model with a tokenizer learned from these episodes."""
    if name != "tiny":
        how = prompt_changes(config, name)
        local = load(name, slots=1, seed=config.seed, device=config.device, dtype=compute_type(config), **how)
        return with_adapter(local, config)
    device = find_device(config.device)
    texts = (message["content"] for _, episode in dataset.episodes for message in episode.attempt.messages)
    tokenizer = tiny_tokenizer(text for text in texts if isinstance(text, str))
    local = serve(tiny_model(len(tokenizer), seed=config.seed).to(device), tokenizer, slots=1, seed=config.seed)
    return as_opened(local, config, 1)


def _notes(dataset: Demonstrations, rows: SFTRows, max_tokens: int) -> Iterator[str]:
    """Yield sentences for the user: how many rows are imitated, and how many were cut."""
    tokens, sampled = sum(map(len, rows.rows)), sum(int(row.sampled.sum()) for row in rows.rows)
    sources = ", ".join(f"{count} of {env_id}" for env_id, count in dataset.environments.items())
    yield f"{sources}: {len(rows.rows)} rows, {tokens:,} tokens, {sampled:,} of them the agent's"
    if rows.truncated:
        yield f"{rows.truncated} rows are longer than {max_tokens} tokens; they were cut off"
    if rows.emptied:
        yield f"{rows.emptied} rows are left out: nothing to imitate was left in them"


def sft_rows(
    chat: Chat,
    episodes: Iterable[tuple[str, Episode]],
    max_tokens: int,
    *,
    strip_thinking: bool = False,
    only_worked: bool = False,
) -> SFTRows:
    """Return the token rows of these episodes under the trained model's chat template, cut to `max_tokens` tokens. Each
    episode comes with a text that says where it was read.
    """
    kept_rows: list[TokenRow] = []
    truncated = emptied = 0
    for place, episode in episodes:
        try:
            trained_turns = turns_that_worked(episode) if only_worked else None
            rows = [
                row
                for messages, tools in episode.dialogues
                for row in written_rows(
                    chat, as_thought(messages, chat.opened_thinking, strip_thinking), tools, trained_turns
                )
            ]
        except PalaestraError as error:
            raise UsageError(f"{place}: {error}") from error
        except Exception as error:  # Templates raise arbitrary errors for a dialogue that they do not support.
            raise UsageError(
                f"{place}: the student's chat template cannot show this dialogue ({type(error).__name__}: {error}); "
                "choose another model, or put another chat_template.jinja into the model folder"
            ) from error
        for row in rows:
            short = truncate(row, max_tokens)
            truncated += len(short) < len(row)
            if short.sampled.any():
                kept_rows.append(short)
            else:
                emptied += 1
    return SFTRows(tuple(kept_rows), truncated, emptied)


def truncate(row: TokenRow, max_tokens: int) -> TokenRow:
    """Return the first `max_tokens` tokens of a row."""
    if len(row) <= max_tokens:
        return row
    arrays = {name: getattr(row, name)[:max_tokens] for name in ("ids", "sampled", "logprobs", "versions")}
    return replace(row, **arrays)


def longest_row(model: Any, config: SFTConfig) -> int:
    """Return `max_row_tokens`, or the model's number of positions if that is smaller."""
    places = getattr(model.config, "max_position_embeddings", None)
    return min(config.max_row_tokens, places) if isinstance(places, int) and places > 1 else config.max_row_tokens
