"""`palaestra pool FILES --out POOL.jsonl`: merge files of training tasks, without the rows that spoil training.

Left out: the rules (`envs.data.pool`), reading (`envs.data.pool_files`), and measuring how hard tasks are (`curate`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import note, show_line, table
from palaestra.cli.output import Reported, reporting, require_writable
from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.pool import RULES, TaskPool, disputed_by, pooled
from palaestra.envs.data.pool_files import PoolRow, read_pool_file, read_test_prompts
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.reading import RecordReader
from palaestra.trainers.data.curated import Curated
from palaestra.trainers.data.curation import prompt_digest
from palaestra.trainers.run.atomic_files import write_text

_SHOWN = 3
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class PoolOptions(Reported):
    """Merge several files of tasks into one training file, and report how many rows of each source each rule dropped.

    The files are files of tasks, as `palaestra data` reads them, or published files of questions and problems with
    their original columns. The column `source` holds the source of each row.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files of tasks. Of equal rows only the first is kept, so name the better file first."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """File for the pool, POOL.jsonl."""
    against: tuple[Path, ...] = ()
    """Files of tests: a row is dropped if its question is in one of these files, exactly or nearly."""
    attempts: tuple[Path, ...] = ()
    """Files of episodes: a task is dropped if a model nearly always gave the same answer to it, and its label is
    another."""
    curated: tuple[Path, ...] = ()
    """Files of `palaestra curate`: of the training tasks, only those that these files name are kept."""

    def __post_init__(self) -> None:
        if self.out.suffix != ".jsonl":
            raise UsageError(f"--out is {self.out}; expected a name that ends in .jsonl")
        read = (*self.files, *self.against, *self.attempts, *self.curated)
        if self.out.resolve() in [path.resolve() for path in read]:
            raise UsageError(f"--out is {self.out}, which is read too and would be lost; name another file")
        require_writable("--out", self.out)
        if not self.files:
            raise UsageError("name files of tasks: palaestra pool TASKS.jsonl ... --out POOL.jsonl")


def run(arguments: Sequence[str]) -> int:
    """Write the pool. Return 1 if no row is left."""
    options = tyro.cli(PoolOptions, args=list(arguments), prog="palaestra pool")
    with reporting(options.json) as figures:
        rows, unreadable = _read(options.files)
        tests = [prompt for path in options.against for prompt in read_test_prompts(path)]
        prompts = {task.prompt for path in options.curated for task in Curated.read(path).tasks}
        if prompts and prompts.isdisjoint(prompt_digest(row.task.prompt) for row in rows):
            raise UsageError("no task of --curated is in these files; expected a file that was curated on their tasks")

        def fits(prompt: str) -> bool:
            """Return whether a prompt is curated, or held out for measuring: such prompts are never curated."""
            return not prompts or prompt_digest(prompt) in prompts or split_of(prompt) == "eval"

        pool = pooled(rows, tests, disputed=disputed_by(_episodes(options.attempts)), fits=fits)
        figures |= {"out": str(options.out), "rows": len(rows) + sum(unreadable.values()), "kept": len(pool.rows)}
        figures |= {_UNREADABLE: unreadable, "by_source": {name: dict(counts) for name, counts in pool.counts.items()}}
        console = Console()
        console.print(table("", *_shown(pool)))
        if not pool.rows:
            show_line(console, f"nothing was kept, so {options.out} was not written")
            return 1
        write_text(options.out, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in _written(pool.rows)))
        show_line(console, f"{len(pool.rows):,} tasks: {options.out}")
        return 0


def _read(paths: Sequence[Path]) -> tuple[list[PoolRow], dict[str, int]]:
    """Return the rows of all files, and the number of unreadable rows by file. A note describes the first of them."""
    rows: list[PoolRow] = []
    unreadable: dict[str, int] = {}
    for path in paths:
        file_rows, fault = read_pool_file(path)
        rows += file_rows
        if fault is not None:
            unreadable[str(path)] = fault.count
            note("; ".join([f"{path}: {fault.summary} and left out", *fault.faults[:_SHOWN]]))
    return rows, unreadable


def _episodes(paths: Sequence[Path]) -> Iterator[Episode]:
    """Yield the episodes of all files. Raise a UsageError for a file without episodes."""
    for path in paths:
        empty = True
        for _, record in RecordReader([path], note):
            empty = False
            yield record.episode
        if empty:
            raise UsageError(
                f"--attempts: {path} holds no episode; expected a file of episodes, such as the .played.jsonl that "
                "palaestra curate writes"
            )


def _shown(pool: TaskPool) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return the table's rows, one for each source, and its columns, one for each rule that dropped a row."""
    sources = dict(pool.counts)
    names = ("rows", *(rule for rule in RULES if any(counts[rule] for counts in sources.values())), "kept")
    if len(sources) > 1:
        sources["all"] = {name: sum(counts[name] for counts in sources.values()) for name in names}
    return {source: tuple(f"{counts[name]:,}" for name in names) for source, counts in sources.items()}, names


def _written(rows: Sequence[PoolRow]) -> Iterator[dict[str, Any]]:
    """Yield each row in the form that `read_tasks` reads: with a unique id, its source, and the split "train"."""
    used_names = set[str]()
    for row in rows:
        task_id, source = row.task.id, row.source
        names = chain((task_id, f"{source}/{task_id}"), (f"{source}/{task_id} {number}" for number in count(2)))
        name = next(candidate for candidate in names if candidate not in used_names)
        used_names.add(name)
        parts = {"id": name, "prompt": row.task.prompt, "answer": row.task.answer, "source": source, "split": "train"}
        yield {**parts, **{name: value for name, value in row.task.data.items() if name not in parts}}
