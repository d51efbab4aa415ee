"""Test the claims of the papers: `make study PART=algorithms` (an hour on two cores), or another part.

Runs that are already in the results are not repeated. So the study can be stopped and resumed, and one comparison can
be run alone: `make study PART=algorithms ONLY=vspo`. The exit status is 1 if a run failed.
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
from report import BEGIN, BEGIN_CLAIMS, BEGIN_ROUND, END, ROUNDS, write
from results import Results

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Options:
    """Run the missing runs of the study, and write its pages again."""

    part: tyro.conf.Positional[Literal["algorithms", "reagent", "tree", "second", "third"]]
    """Claims to test: of papers 1 and 3, of paper 2, of trees of episodes, or those that earlier rounds left open."""
    only: tuple[str, ...] = ()
    """Names of comparisons; empty: all."""
    seeds: int = 60
    """Largest number of seeds of each comparison; each has five to sixty."""
    minutes: float = 60.0
    """Minutes after which no run begins; 0 only writes the pages."""
    miniature: Path | None = None
    """Folder for a trial of every arm: one step each, from start models of two steps; None for the study itself."""
    workers: int = 2
    """Number of processes, with one thread each."""
    starts: Path = HERE.parents[1] / "runs" / "study"
    """Folder of the start models."""
    results: Path = field(default=HERE.parent / "results" / "study")
    """Folder of the results, with one file for each comparison and one line for each run."""
    page: Path = HERE.parents[1] / "docs" / "study.md"
    """Page with the table of claims."""
    appendix: Path = HERE.parents[1] / "docs" / "study_tables.md"
    """Page with the tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all missing runs, seed by seed, after their start models. Write the pages. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    small = options.miniature is not None
    if options.miniature is not None:
        folder = options.miniature
        paths = {"starts": folder / "starts", "results": folder / "results"}
        paths |= {"page": folder / "study.md", "appendix": folder / "study_tables.md"}
        marks = (BEGIN.format(options.part), *map(BEGIN_ROUND.format, ROUNDS))
        paths["page"].write_text(f"{BEGIN_CLAIMS}\n{END}\n", encoding="utf-8")
        paths["appendix"].write_text("".join(f"{mark}\n{END}\n\n" for mark in marks), encoding="utf-8")
        options = replace(options, seeds=1, **paths)
    if unknown := [name for name in options.only if name not in PARTS[options.part]]:
        raise SystemExit(f"no comparison is called {unknown[0]!r}; there are {', '.join(PARTS[options.part])}")
    results, failed, end = Results(options.results), 0, time.monotonic() + 60 * options.minutes
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        left, running = _missing(options, results), dict[Future[dict[str, Any]], tuple[str, str, int]]()
        while True:
            while len(running) < options.workers and time.monotonic() < end and (job := next(left, None)):
                running[pool.submit(run, *job, options.starts, small)] = job
            if not running:
                break
            done = next(as_completed(running))
            failed += not _save(results, *running.pop(done), done)
    write(options.page, options.appendix, results, options.part)
    missing = len(list(_missing(options, results)))
    print(f"{missing} runs are missing; the same command resumes the study" if missing else "every run is there")
    return 1 if failed else 0


def _missing(options: Options, results: Results) -> Iterator[tuple[str, str, int]]:
    """Yield comparison, arm and seed of the runs that are missing: comparison by comparison, seed by seed."""
    for name in options.only or PARTS[options.part]:
        comparison = COMPARISONS[name]
        for number in range(options.seeds):
            seed = comparison.first_seed + number
            for arm in comparison.arms:
                if number < comparison.seeds_of(arm) and not results.has(name, arm, seed):
                    yield name, arm, seed


def _save(results: Results, name: str, arm: str, seed: int, done: "Future[dict[str, Any]]") -> bool:
    """Write a finished run to the results and print it. Return False if it failed."""
    try:
        figures = done.result()
    except Exception as error:
        print(f"{name}, {arm}, seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    results.add(name, figures)
    line = " ".join(f"{point['success']:.2f}" for point in figures["curve"])
    print(json.dumps({"run": [name, arm, seed], "success": line, "cpu_s": figures["cpu_seconds"]}), flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
