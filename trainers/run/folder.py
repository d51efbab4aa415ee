"""A run's folder: its config, the log of each step, its results, and the lock of the process that writes it.

config.json     the resolved config
start/          the model before the first step, if it cannot be loaded again: the tiny agent, or the reference of a KL
before.json     metrics on held-out tasks before the first step
metrics.jsonl   one line per step; its `causes` say why episodes of the step failed, if some did
measured.jsonl  one line for each evaluation on held-out tasks during the run, if the config sets them
best/           the model of the best evaluation, with its line as measured.json
episodes/       step-000012.jsonl, eval-before.jsonl, eval-after.jsonl: episodes with their tokens (`palaestra.record`)
checkpoints/    the newest checkpoints, from which `palaestra train --resume` continues (`checkpoint`)
tracking.json   last step sent to each tracker (`tracking`)
seconds.json    wall and CPU seconds over all resumed parts of the run, up to the last logged step
summary.json    final metrics, seed, versions, wall and CPU seconds; written when the run is finished
model/          safetensors, tokenizer and template
adapter/        the adapter alone, if one was trained, in peft's format
lock            locked by the writing process until it ends; after that the file may remain, without effect

One process writes; others may read at the same time. The other ranks of a job open the folder too, but what they add is
not written. Not in this module: the content of a checkpoint, and the steps of a run (`trainers.training`).
"""

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palaestra.causes import Causes
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.mixture import environment_of
from palaestra.record import Lesson, Record, write
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sections_config import EvalConfig
from palaestra.trainers.run.atomic_files import append_line, require_no_links, sweep, write_text, written
from palaestra.trainers.run.json_files import read_object, read_steps
from palaestra.trainers.run.progress import Progress
from palaestra.trainers.run.run_clock import RunClock
from palaestra.trainers.run.run_lock import claimed
from palaestra.trainers.run.saved_config import RunConfig, agreed, read_config, settled, trusted, written_config
from palaestra.trainers.run.versions import versions

_CONTENT = ("config.json", "metrics.jsonl")
_METRICS, _MEASURED, _SECONDS = "metrics.jsonl", "measured.jsonl", "seconds.json"


class Run:
    """A run and its folder; a context manager. A run that may write keeps the folder locked until it is closed."""

    def __init__(self, folder: Path | str, config: RunConfig, *, rank: int = 0) -> None:
        """Resume the run in a folder, or begin one if there is none.

        The config may differ from the saved one in settings that do not affect weights. With several ranks only the
        first one writes.
        """
        self._open(Path(folder), config, begin=not _holds_run(Path(folder)), writes=rank == 0)

    @classmethod
    def create(cls, folder: Path, config: RunConfig) -> "Run":
        """Begin a run in a folder that does not hold one."""
        return cls._opened(folder, config, begin=True, writes=True)

    @classmethod
    def reopened(cls, folder: Path, config: RunConfig | None = None) -> "Run":
        """Resume the run in a folder. If `config` is None, the saved one is used, which must not name any service."""
        if config is None:
            config = trusted(folder, saved := read_config(folder), saved)
        return cls._opened(folder, config, begin=False, writes=True)

    @classmethod
    def read(cls, folder: Path | str, modules: Collection[str] = ()) -> "Run":
        """Open a run for reading only, even while another process writes it. Only `modules` may be imported."""
        return cls._opened(Path(folder), read_config(Path(folder), modules), begin=False, writes=False)

    @classmethod
    def unwritten(cls, config: RunConfig) -> "Run":
        """Make a run without a folder: nothing is written, so nothing is measured on held-out tasks either."""
        if isinstance(config, GRPOConfig):
            config = replace(config, eval_tasks=0, eval=EvalConfig())
        # Nothing is below this path, so every file of the run is missing.
        return cls._opened(Path(os.devnull), config, begin=True, writes=False)

    @classmethod
    def _opened(cls, folder: Path, config: RunConfig, *, begin: bool, writes: bool) -> "Run":
        run = cls.__new__(cls)
        run._open(folder, config, begin=begin, writes=writes)
        return run

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """Return the folder of the trained model."""
        return self.folder / "model"

    @property
    def adapter(self) -> Path:
        """Return the folder of the adapter alone, which exists if one was trained."""
        return self.folder / "adapter"

    @property
    def summary(self) -> dict[str, Any]:
        """Return the summary at the end; empty before the run is finished."""
        return read_object(self.folder / "summary.json") or {}

    @property
    def finished(self) -> bool:
        """Return whether all steps are taken and the summary is written."""
        return bool(self.summary.get(self.config.LENGTH) == getattr(self.config, self.config.LENGTH))

    @property
    def before(self) -> dict[str, Any] | None:
        """Return the metrics on held-out tasks before the first step; None if they were not measured."""
        return read_object(self.folder / "before.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each logged step. An incomplete last line of a killed process is skipped."""
        return read_steps(self.folder / _METRICS)

    @property
    def measured(self) -> list[dict[str, Any]]:
        """Return the evaluations on held-out tasks during the run, each with its `step`."""
        return read_steps(self.folder / _MEASURED)

    @property
    def best(self) -> dict[str, Any] | None:
        """Return the evaluation of the model in `best`; None before the first evaluation."""
        return read_object(self.folder / "best" / "measured.json")

    @property
    def curve(self) -> list[float]:
        """Return the success of each logged step, without steps in which every episode broke."""
        return [line["rewards/success/mean"] for line in self.metrics if "rewards/success/mean" in line]

    @property
    def causes(self) -> Causes:
        """Return why episodes failed so far, in the steps and in the evaluations before and after them."""
        evaluations = [*(self.before or {}).values(), *self.summary.get("after", {}).values()]
        return Causes(part.get("causes") for part in [*self.metrics, *evaluations] if isinstance(part, Mapping))

    def settle(self, config: RunConfig) -> None:
        """Replace the config of the run, and save it in the folder."""
        self.config = config
        if self.writes:
            write_text(self.folder / "config.json", written_config(config))

    def add(self, progress: Progress) -> None:
        """Log a step: one line of metrics, with null for values that are not finite, and the episodes that are kept."""
        if isinstance(self.config, GRPOConfig):
            starts = [episode.start for episode, _ in progress.rollouts]
            groups = sorted({start.group for start in starts})[: self.config.save.recorded_groups]
            # Keep whole games, whose seats share this key: each seat has groups of its own.
            games = {start.key[:3] for start in starts if start.group in groups}
            recorded = [pair for pair in progress.rollouts if pair[0].start.key[:3] in games or pair[0].reward is None]
            self.keep(f"step-{progress.step:06}", recorded, "train")
        figures = {name: value if math.isfinite(value) else None for name, value in progress.metrics.items()}
        line = {"step": progress.step, **figures, **({"causes": progress.causes} if progress.causes else {})}
        if self.writes:
            append_line(self.folder / _METRICS, json.dumps(line, allow_nan=False))
            self._clock.save()

    def add_measured(self, line: Mapping[str, Any]) -> None:
        """Log an evaluation during the run."""
        if self.writes:
            append_line(self.folder / _MEASURED, json.dumps(line, allow_nan=False))

    def add_before(self, figures: Mapping[str, Any]) -> None:
        """Save the evaluation before the first step."""
        if self.writes:
            write_text(self.folder / "before.json", json.dumps(figures, indent=2) + "\n")
            self._clock.save()

    def keep(self, name: str, episodes: Iterable[tuple[Episode, tuple[Lesson, ...]]], split: str) -> None:
        """Write episodes to `episodes/NAME.jsonl`, sorted by group and seed. Do nothing if the config keeps none."""
        config, pairs = self.config, sorted(episodes, key=lambda pair: (pair[0].start.group, pair[0].start.seed))
        if not (pairs and self.writes and isinstance(config, GRPOConfig) and config.save.recorded_groups):
            return
        path = self.folder / "episodes" / f"{name}.jsonl"
        records = (
            Record(env_id, episode, {"split": split, **options}, config.model, lessons)
            for episode, lessons in pairs
            for env_id, options in [environment_of(config.env.env_id, config.env.options, episode.start.env)]
        )
        try:
            with written(path):
                write(path, records)
        except UsageError as error:
            raise UsageError(f"{error}; or pass --save.recorded-groups 0 to keep no episodes") from error

    def rewind(self, step: int) -> None:
        """Delete what was logged after a step, because that part of the run is repeated."""
        if not self.writes:
            return
        if missing_steps := set(range(1, step + 1)) - {line["step"] for line in self.metrics}:
            self.notes.append(f"metrics.jsonl lacks {len(missing_steps)} of the first {step} steps; was it edited?")
        for path in (self.folder / _METRICS, self.folder / _MEASURED):
            if path.exists():
                lines = [json.dumps(line) + "\n" for line in read_steps(path) if line["step"] <= step]
                write_text(path, "".join(lines))
        for path in (self.folder / "episodes").glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if number.isdigit() and int(number) > step:
                path.unlink()

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json atomically. Return its content."""
        summary = {
            **self.config.heading,
            **figures,
            **{name: round(seconds, 1) for name, seconds in self._clock.seconds().items()},
            "versions": versions(),
        }
        if self.writes:
            write_text(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        return summary

    def withdraw(self) -> bool:
        """Delete a run that has produced nothing yet, so that its name is free again. Return False if it has produced
        something.
        """
        outputs = ("start", "before.json", "checkpoints", "summary.json", "model", "best", _MEASURED)
        episodes = self.folder / "episodes"
        has_outputs = any((self.folder / name).exists() for name in outputs)
        if not self.writes or has_outputs or self.metrics or any(episodes.iterdir()):
            return False
        for name in (*_CONTENT, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        episodes.rmdir()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
        return True

    def close(self) -> None:
        """Release the lock on the folder."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _open(self, folder: Path, config: RunConfig, *, begin: bool, writes: bool) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.notes: list[str] = []
        """Notes for the user on a resumed run."""
        self._clock = RunClock(folder / _SECONDS)
        if writes:
            require_no_links(folder, ("episodes", "checkpoints"))
        self._lock = claimed(folder) if writes else None
        try:
            if begin and writes:
                if _holds_run(folder):
                    raise UsageError(
                        f"{folder} already holds a run; go on with it (--resume {folder}), choose another folder, or "
                        "remove it"
                    )
                (folder / "episodes").mkdir(exist_ok=True)
                self.settle(config)
                (folder / "metrics.jsonl").touch()
            elif not begin:
                self._go_on(config)
        except BaseException:
            self.close()
            raise

    def _go_on(self, config: RunConfig) -> None:
        saved = read_config(self.folder)
        if saved.KIND != config.KIND:
            raise UsageError(f"{self.folder} holds a run of the kind {saved.KIND}, not {config.KIND}")
        self.config = settled(saved, config)
        self.notes = agreed(saved, self.config, self.folder)
        if not self.writes:
            return
        parts = (*_CONTENT, _MEASURED, _SECONDS, "tracking.json", "before.json", "summary.json")
        sweep(self.folder, (*parts, "start", "model", "adapter", "best"))
        for name in ("episodes", "checkpoints"):
            sweep(self.folder / name)
        (self.folder / "episodes").mkdir(exist_ok=True)
        if self.config != saved:
            self.settle(self.config)


def _holds_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in _CONTENT)


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """Return the path `runs/NAME`; if it exists, the first of `runs/NAME-2`, `runs/NAME-3`, ... that does not exist."""
    folder, number = root / name, 2
    while folder.exists():
        folder, number = root / f"{name}-{number}", number + 1
    return folder
