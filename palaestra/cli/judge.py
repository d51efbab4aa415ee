"""`palaestra judge FILE... --out labels.jsonl`: verdicts on recorded episodes, for training a judge of them.

A reward model that is served labels them (`--url`), or without one a rule that looks at calls alone. The labels are a
file of tasks for Judge-v0; `--demonstrations` writes the verdicts as episodes too, for `palaestra sft`. What cannot be
labelled is left out and counted. Left out: the training itself (`palaestra sft`, `palaestra train judge`).
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.episodes import Reading
from palaestra.cli.output import Reported, reporting, require_writable
from palaestra.episode import Attempt, Ending, Episode, Start, Task
from palaestra.errors import PalaestraError
from palaestra.judging.annotator import annotated, written
from palaestra.judging.prompt import episode_prompt
from palaestra.judging.verdict import Verdict, read_verdict
from palaestra.record import Record, write

if TYPE_CHECKING:
    from palaestra.endpoint.judge import Judge

ENV = "palaestra/Judge-v0"
_TOGETHER = 64


@dataclass(frozen=True)
class Options(Reported):
    """Label recorded episodes with verdicts: a critique and a score from 0 to 1."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    out: Path
    """The labels: tasks for `palaestra train judge --env-options tasks=FILE`."""
    demonstrations: Path | None = None
    """The verdicts as episodes too, for `palaestra sft`."""
    url: tuple[str, ...] = ()
    """OpenAI-compatible servers of a teacher; a rule labels where none is named."""
    served_as: str = "rrm"
    """The teacher's name there."""
    read_chars: int = 48_000
    """Characters of an episode that is shown; of a longer one tool results are cut first."""


def run(arguments: Sequence[str]) -> int:
    """Label, and say how many could not be; 1 where none could."""
    options, console = tyro.cli(Options, args=list(arguments), prog="palaestra judge"), Console()
    for option, path in (("--out", options.out), ("--demonstrations", options.demonstrations)):
        if path is not None:
            require_writable(option, path)
    with reporting(options.json) as report:
        asked = _teacher(options)
        try:
            rows, played, dropped = _labelled(options, asked, console)
        finally:
            if asked is not None:
                asked.close()
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        if options.demonstrations is not None:
            write(options.demonstrations, played)
        show_line(console, f"{len(rows)} episodes labelled: {options.out}; {dropped} left out")
        report.update({"labelled": len(rows), "left_out": dropped, "teacher": list(options.url) or "rule"})
    return 0 if rows else 1


def _teacher(options: Options) -> "Judge[Verdict] | None":
    from palaestra.endpoint import Endpoint, EndpointConfig
    from palaestra.endpoint.judge import Judge

    if not options.url:
        return None
    servers = [Endpoint(EndpointConfig(url, options.served_as, patience=0.0)) for url in options.url]
    made = Judge(servers, read_verdict, max_tokens=1_400, deadline=300.0, patience=300.0, thoughts=True)
    try:
        made.check()
    except BaseException:
        made.close()
        raise
    return made


def _labelled(
    options: Options, asked: "Judge[Verdict] | None", console: Console
) -> tuple[list[dict[str, Any]], list[Record], int]:
    rows, played, dropped, batch = list[dict[str, Any]](), list[Record](), 0, list[tuple[str, Episode]]()

    def label() -> None:
        nonlocal dropped
        prompts = [episode_prompt(episode, options.read_chars) for _, episode in batch]
        found: list[Verdict | BaseException]
        found = [annotated(episode) for _, episode in batch] if asked is None else asyncio.run(_all(asked, prompts))
        for (place, episode), messages, verdict in zip(batch, prompts, found, strict=True):
            if isinstance(verdict, PalaestraError):
                dropped += 1
                show_line(console, f"{place}: {verdict}")
            elif isinstance(verdict, BaseException):
                raise verdict
            else:
                rows.append(
                    {"prompt": messages[1]["content"], "answer": verdict.score, "id": place, "reward": episode.reward}
                )
                played.append(_demonstration(len(played), messages, verdict))
        batch.clear()

    for place, record in Reading(options.files, console):
        if record.episode.ending is Ending.BROKEN:
            dropped += 1
            continue
        batch.append((place, record.episode))
        if len(batch) == _TOGETHER:
            label()
    label()
    return rows, played, dropped


async def _all(asked: "Judge[Verdict]", prompts: Sequence[list[dict[str, Any]]]) -> list[Verdict | BaseException]:
    return await asyncio.gather(*map(asked.ask, prompts), return_exceptions=True)


def _demonstration(number: int, messages: list[dict[str, Any]], verdict: Verdict) -> Record:
    """A verdict as the episode of a judge that gave it."""
    said = written(verdict)
    task = Task(messages[1]["content"], verdict.score)
    attempt = Attempt(task, (*messages, {"role": "assistant", "content": said}), said.partition("</think>")[2], (), 1)
    parts = {"success": 1.0, "format": 1.0, "distance": 0.0}
    return Record(ENV, Episode(Start(number, number), attempt, (), Ending.ANSWERED, 1.0, parts), agent="labels")
