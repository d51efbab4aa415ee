"""The papers' claims put to the test: `make study PART=algorithms` (an hour on two cores), or `PART=reagent`.

Runs that are already in the results are not run again, so the study can be stopped and gone on with, and one comparison
be run alone: `make study PART=algorithms ONLY=vspo`. Exit status 1 where a run failed.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tyro
from one_run import run
from parts import COMPARISONS, PARTS
from report import BEGIN, BEGIN_CLAIMS, END, write
from results import Results

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Options:
    """Run what is missing of the study, and write its page anew."""

    part: tyro.conf.Positional[Literal["algorithms", "reagent", "tree"]]
    """Which claims: those of papers 1 and 3, of paper 2, or of trees of episodes."""
    only: tuple[str, ...] = ()
    """Comparisons, by name; all where none is named."""
    seeds: int = 10
    """Seeds of each comparison at most; the study asks for five or ten, comparison by comparison."""
    minutes: float = 60.0
    """No run begins later; 0 writes the page alone."""
    miniature: Path | None = None
    """Try every arm for a step from start models that were hardly raised, and keep all of it in this folder."""
    workers: int = 2
    """Processes, with one thread each."""
    starts: Path = HERE.parents[1] / "runs" / "study"
    """Where start models are kept."""
    results: Path = field(default=HERE.parent / "results" / "study")
    """Where each run's figures go, a file a comparison and a line a run."""
    page: Path = HERE.parents[1] / "docs" / "study.md"
    """The page whose table of claims is written."""
    appendix: Path = HERE.parents[1] / "docs" / "study_tables.md"
    """The page whose tables are written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Raise what must be raised, run what has not been run, seed by seed, and report."""
    options = tyro.cli(Options, args=arguments)
    small = options.miniature is not None
    if options.miniature is not None:
        folder = options.miniature
        kept = {"starts": folder / "starts", "results": folder / "results"}
        kept |= {"page": folder / "study.md", "appendix": folder / "study_tables.md"}
        for path, begin in ((kept["page"], BEGIN_CLAIMS), (kept["appendix"], BEGIN.format(options.part))):
            path.write_text(f"{begin}\n{END}\n", encoding="utf-8")
        options = replace(options, seeds=1, **kept)
    if unknown := [name for name in options.only if name not in PARTS[options.part]]:
        raise SystemExit(f"no comparison is called {unknown[0]!r}; there are {', '.join(PARTS[options.part])}")
    results, failed, end = Results(options.results), 0, time.monotonic() + 60 * options.minutes
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for seed in range(options.seeds if options.minutes else 0):
            left, running = _missing(options, results, seed), dict[Future[dict[str, Any]], tuple[str, str]]()
            while True:
                while len(running) < options.workers and time.monotonic() < end and (job := next(left, None)):
                    running[pool.submit(run, *job, seed, options.starts, small)] = job
                if not running:
                    break
                done = next(as_completed(running))
                name, arm = running.pop(done)
                failed += not _kept(results, name, arm, seed, done)
    write(options.page, options.appendix, results, options.part)
    missing = sum(len(list(_missing(options, results, seed))) for seed in range(options.seeds))
    print(f"{missing} runs are missing; the same command goes on" if missing else "every run is there")
    return 1 if failed else 0


def _missing(options: Options, results: Results, seed: int) -> Iterator[tuple[str, str]]:
    """Comparison and arm of the runs with this seed that are not there."""
    for name in options.only or PARTS[options.part]:
        for arm in COMPARISONS[name].arms:
            if seed < COMPARISONS[name].seeds_of(arm) and not results.has(name, arm, seed):
                yield name, arm


def _kept(results: Results, name: str, arm: str, seed: int, done: "Future[dict[str, Any]]") -> bool:
    """Write a run down, and say how it ended."""
    try:
        found = done.result()
    except Exception as error:
        print(f"{name}, {arm}, seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    results.add(name, found)
    line = " ".join(f"{point['success']:.2f}" for point in found["curve"])
    print(json.dumps({"run": [name, arm, seed], "success": line, "cpu_s": found["cpu_seconds"]}), flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
