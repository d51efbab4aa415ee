"""A run's folder: what was asked, what happened at each step, what came of it, and who is at work in it.

config.json     the resolved config
start/          the model before the first step, where it cannot be had again: the tiny agent, or the reference of a KL
before.json     figures on held-out tasks before the first step
metrics.jsonl   one line a step
measured.jsonl  one line for each measurement on held-out tasks on the way, where the config asks for them
best/           the model of the best of these, with its line as measured.json
episodes/       step-000012.jsonl, eval-before.jsonl, eval-after.jsonl: episodes with their tokens (`palaestra.record`)
checkpoints/    the newest ones: what `palaestra train --resume` goes on from (`trainers.checkpoint`)
tracking.json   how far each tracker has been told (`tracking`)
summary.json    the figures at the end, with seed, versions, wall and CPU seconds; not before the run is finished
model/          safetensors, tokenizer and template
adapter/        beside it, where an adapter was trained: that alone, as peft reads it
lock            held by the process at work, and let go when it dies; the file itself says nothing

One process writes. Others may read while it does, and ranks of one job hold it open beside it: what they add is not
written. Left out: what is in a checkpoint, and what is done in a run (`training`).
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.mixture import environment_of
from palaestra.record import Lesson, Record, write
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.durable import append_line, sweep, write_text, written
from palaestra.trainers.lock import claimed
from palaestra.trainers.metrics import mixture_shares
from palaestra.trainers.progress import Progress
from palaestra.trainers.provenance import cpu_seconds, versions
from palaestra.trainers.resume import RunConfig, agreed, read_config, settled, written_config

_CONTENT = ("config.json", "metrics.jsonl")
_METRICS, _MEASURED = "metrics.jsonl", "measured.jsonl"


class Run:
    """A folder that this process alone writes to, until it closes the run or dies; a context manager."""

    def __init__(self, folder: Path | str, config: RunConfig, *, rank: int = 0) -> None:
        """Go on with the run in a folder, or begin one where there is none.

        Its config may differ from what was written there in what changes no weight. Of several ranks of one job the
        first writes; the others only read.
        """
        there = _holds_run(Path(folder))
        self._open(Path(folder), config, begin=not there, writes=rank == 0)

    @classmethod
    def begun(cls, folder: Path, config: RunConfig) -> "Run":
        """Begin a run in a folder that holds none."""
        run = cls.__new__(cls)
        run._open(folder, config, begin=True, writes=True)
        return run

    @classmethod
    def reopened(cls, folder: Path, config: RunConfig | None = None) -> "Run":
        """Go on with the run in a folder, under its own config where none is given."""
        run = cls.__new__(cls)
        run._open(folder, config or read_config(folder), begin=False, writes=True)
        return run

    @classmethod
    def read(cls, folder: Path | str) -> "Run":
        """Look at a run, whoever is at work in it."""
        run = cls.__new__(cls)
        run._open(Path(folder), read_config(Path(folder)), begin=False, writes=False)
        return run

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder of the model that it has made."""
        return self.folder / "model"

    @property
    def adapter(self) -> Path:
        """The folder of the adapter alone, where one was trained."""
        return self.folder / "adapter"

    @property
    def summary(self) -> dict[str, Any]:
        """The figures at the end; empty before it."""
        return _read(self.folder / "summary.json") or {}

    @property
    def finished(self) -> bool:
        """Whether all its steps are taken and summed up."""
        return bool(self.summary.get(self.config.LENGTH) == getattr(self.config, self.config.LENGTH))

    @property
    def before(self) -> dict[str, Any] | None:
        """The figures before the first step, if they were taken."""
        return _read(self.folder / "before.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The figures of each step, as far as they are written down whole: a killed process leaves half a line."""
        return _lines(self.folder / _METRICS)

    @property
    def measured(self) -> list[dict[str, Any]]:
        """What was measured on held-out tasks on the way, each with its `step`."""
        return _lines(self.folder / _MEASURED)

    @property
    def best(self) -> dict[str, Any] | None:
        """The measurement of the model in `best`; None before the first."""
        return _read(self.folder / "best" / "measured.json")

    @property
    def curve(self) -> list[float]:
        """Success of each step's episodes, as far as it is written down; a step whose episodes all broke has none."""
        return [line["rewards/success/mean"] for line in self.metrics if "rewards/success/mean" in line]

    def settle(self, config: RunConfig) -> None:
        """Take down what could not be known before the model was there."""
        self.config = config
        if self.writes:
            write_text(self.folder / "config.json", written_config(config))

    def add(self, progress: Progress) -> None:
        """Write down a step: a line of metrics, in which what is no number is null, and the episodes that are kept."""
        if isinstance(self.config, GRPOConfig):
            groups = sorted({episode.start.group for episode, _ in progress.played})[: self.config.save.recorded_groups]
            # Whole games: seats are compared in groups of their own, and a game is looked at with all of its seats.
            games = {_game(episode) for episode, _ in progress.played if episode.start.group in groups}
            kept = [pair for pair in progress.played if _game(pair[0]) in games or pair[0].reward is None]
            self.keep(f"step-{progress.step:06}", kept, "train")
        figures = {name: value if math.isfinite(value) else None for name, value in progress.metrics.items()}
        if self.writes:
            append_line(self.folder / _METRICS, json.dumps({"step": progress.step, **figures}, allow_nan=False))

    def add_measured(self, line: Mapping[str, Any]) -> None:
        """Write down a measurement on the way."""
        if self.writes:
            append_line(self.folder / _MEASURED, json.dumps(line, allow_nan=False))

    def add_before(self, figures: Mapping[str, Any]) -> None:
        """Write down how good the agent is before the first step."""
        if self.writes:
            write_text(self.folder / "before.json", json.dumps(figures, indent=2) + "\n")

    def keep(self, name: str, played: Iterable[tuple[Episode, tuple[Lesson, ...]]], split: str) -> None:
        """Write episodes to a file of their own, by group and seed; nothing if the config keeps none."""
        config, pairs = self.config, sorted(played, key=lambda pair: (pair[0].start.group, pair[0].start.seed))
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
        """Forget what was written down after a step: it happens again."""
        if not self.writes:
            return
        lines = [line for line in self.metrics if line["step"] <= step]
        lacking = sorted(set(range(1, step + 1)) - {line["step"] for line in lines})
        if lacking:
            self.notes.append(f"metrics.jsonl lacks {len(lacking)} of the first {step} steps; was it edited?")
        _rewrite(self.folder / _METRICS, lines)
        if measured := self.measured:
            _rewrite(self.folder / _MEASURED, [line for line in measured if line["step"] <= step])
        for path in (self.folder / "episodes").glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if number.isdigit() and int(number) > step:
                path.unlink()

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json, whole or not at all; returns what was written."""
        summary = {
            **self.config.heading,
            **figures,
            **({"mixture": shares} if (shares := mixture_shares(self.metrics)) else {}),
            "wall_seconds": round(time.perf_counter() - self._began, 1),
            "cpu_seconds": round(cpu_seconds(), 1),
            "versions": versions(),
        }
        if self.writes:
            write_text(self.folder / "summary.json", json.dumps(summary, indent=2) + "\n")
        return summary

    def withdraw(self) -> bool:
        """Take back a run that has made nothing yet, so that its name is free again; False where there is something."""
        made = ("start", "before.json", "checkpoints", "summary.json", "model", "best", _MEASURED)
        episodes = self.folder / "episodes"
        there = any((self.folder / name).exists() for name in made)
        if not self.writes or there or self.metrics or any(episodes.iterdir()):
            return False
        for name in (*_CONTENT, "lock"):
            (self.folder / name).unlink(missing_ok=True)
        episodes.rmdir()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
        return True

    def close(self) -> None:
        """Let another process work here."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, folder: Path, config: RunConfig, *, begin: bool, writes: bool) -> None:
        self.folder, self.config, self.writes = folder, config, writes
        self.notes: list[str] = []
        """What whoever goes on with a run should know."""
        self._began = time.perf_counter()
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
        parts = (*_CONTENT, _MEASURED, "tracking.json", "before.json", "summary.json")
        sweep(self.folder, (*parts, "start", "model", "adapter", "best"))
        for name in ("episodes", "checkpoints"):
            sweep(self.folder / name)
        (self.folder / "episodes").mkdir(exist_ok=True)
        if self.config != saved:
            self.settle(self.config)


def _holds_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in _CONTENT)


def _game(episode: Episode) -> tuple[str, int, int]:
    """What the seats of one game have in common, and no other episode of a step has."""
    return episode.start.key[:3]


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, or the first of `runs/NAME-2`, `-3`, ... that is free."""
    folder, number = root / name, 2
    while folder.exists():
        folder, number = root / f"{name}-{number}", number + 1
    return folder


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that say their step."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            found.append(line)
    return found


def _rewrite(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is no whole one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
