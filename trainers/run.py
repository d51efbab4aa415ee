"""A run's folder: what was asked, what happened at each step, what came of it, and who is at work in it.

config.json     the resolved config
start/          the model before the first step, where it cannot be had again: the tiny agent, or the reference of a KL
before.json     figures on held-out tasks before the first step
metrics.jsonl   one line a step
episodes/       step-000012.jsonl, eval-before.jsonl, eval-after.jsonl: episodes with their tokens (`palaestra.record`)
checkpoints/    the newest ones: what `palaestra train --resume` goes on from (`trainers.checkpoint`)
summary.json    the figures at the end, with seed, versions, wall and CPU seconds; not before the run is finished
model/          safetensors, tokenizer and template
lock            held by the process at work, and let go when it dies; the file itself says nothing

Left out: what is in a checkpoint, and how a run is begun or gone on with (`lesson`).
"""

import errno
import fcntl
import json
import os
import platform
import resource
import socket
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.record import Lesson, Record, write
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.durable import append_line, sweep, write_text, written
from palaestra.trainers.progress import Progress
from palaestra.trainers.resume import agreed, read_config, settled

_LIBRARIES = ("palaestra", "torch", "transformers", "tokenizers", "gymnasium", "numpy")


class Run:
    """A folder that this process alone works in, until it closes the run or dies."""

    def __init__(self, folder: Path, config: GRPOConfig) -> None:
        """Begin a run in a folder that holds none."""
        self._claim(folder)
        if any((folder / name).exists() for name in ("config.json", "metrics.jsonl")):
            self.close()
            raise UsageError(
                f"{folder} already holds a run; go on with it (palaestra train --resume {folder}), choose another "
                "folder, or remove it"
            )
        self.config = config
        self.notes: list[str] = []
        """What whoever goes on with a run should know."""
        self._file("episodes").mkdir(exist_ok=True)
        config.save(self._file("config.json"))
        self._file("metrics.jsonl").touch()

    @classmethod
    def reopened(cls, folder: Path, config: GRPOConfig | None = None) -> "Run":
        """Go on with the run in a folder, under its own config or under one that differs in what may differ."""
        saved = read_config(folder)
        run = cls.__new__(cls)
        run._claim(folder)
        try:
            run.config = saved if config is None else settled(saved, config)
            run.notes = agreed(saved, run.config, folder)
            sweep(folder, ("config.json", "before.json", "summary.json", "metrics.jsonl", "start", "model"))
            for name in ("episodes", "checkpoints"):
                sweep(folder / name)
            run._file("episodes").mkdir(exist_ok=True)
            if run.config != saved:
                run.config.save(run._file("config.json"))
        except BaseException:
            run.close()
            raise
        return run

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are."""
        return self._file("checkpoints")

    @property
    def finished(self) -> bool:
        """Whether all its steps are taken and summed up."""
        summary = _read(self._file("summary.json"))
        return summary is not None and summary.get("steps") == self.config.steps

    @property
    def before(self) -> dict[str, Any] | None:
        """The figures before the first step, if they were taken."""
        return _read(self._file("before.json"))

    @property
    def curve(self) -> list[float]:
        """Success of each step's episodes, as far as it is written down."""
        return [line["rewards/success/mean"] for line in self._lines()]

    def settle(self, config: GRPOConfig) -> None:
        """Take down what could not be known before the model was there."""
        config.save(self._file("config.json"))
        self.config = config

    def add(self, progress: Progress) -> None:
        """Write down a step: a line of metrics, and the episodes that are kept."""
        wanted = self.config.recorded_groups
        groups = sorted({episode.start.group for episode, _ in progress.played})[:wanted]
        # Whole games: seats are compared in groups of their own, and a game is looked at with all of its seats.
        games = {_game(episode) for episode, _ in progress.played if episode.start.group in groups}
        kept = [pair for pair in progress.played if _game(pair[0]) in games or pair[0].reward is None]
        self.keep(f"step-{progress.step:06}", kept, "train")
        append_line(self._file("metrics.jsonl"), json.dumps({"step": progress.step, **progress.metrics}))

    def add_before(self, figures: Mapping[str, Any]) -> None:
        """Write down how good the agent is before the first step."""
        write_text(self._file("before.json"), json.dumps(figures, indent=2) + "\n")

    def keep(self, name: str, played: Iterable[tuple[Episode, Lesson | None]], split: str) -> None:
        """Write episodes to a file of their own, by group and seed; nothing if the config keeps none."""
        pairs = sorted(played, key=lambda pair: (pair[0].start.group, pair[0].start.seed))
        if not pairs or not self.config.recorded_groups:
            return
        options = {"split": split, **self.config.environment}
        path = self._file("episodes") / f"{name}.jsonl"
        records = (Record(self.config.env_id, episode, options, self.config.model, lesson) for episode, lesson in pairs)
        try:
            with written(path):
                write(path, records)
        except UsageError as error:
            raise UsageError(f"{error}; or pass --recorded-groups 0 to keep no episodes") from error

    def rewind(self, step: int) -> None:
        """Forget what was written down after a step: it happens again."""
        lines = [line for line in self._lines() if line["step"] <= step]
        lacking = sorted(set(range(1, step + 1)) - {line["step"] for line in lines})
        if lacking:
            self.notes.append(f"metrics.jsonl lacks {len(lacking)} of the first {step} steps; was it edited?")
        write_text(self._file("metrics.jsonl"), "".join(json.dumps(line) + "\n" for line in lines))
        for path in self._file("episodes").glob("step-*.jsonl"):
            number = path.stem.removeprefix("step-")
            if number.isdigit() and int(number) > step:
                path.unlink()

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json, whole or not at all; returns what was written."""
        config = self.config
        summary = {
            "env_id": config.env_id,
            "model": config.model,
            "recipe": config.recipe,
            "seed": config.seed,
            "steps": config.steps,
            "eval_tasks": config.eval_tasks,
            **figures,
            "wall_seconds": round(time.perf_counter() - self._began, 1),
            "cpu_seconds": round(cpu_seconds(), 1),
            "versions": versions(),
        }
        write_text(self._file("summary.json"), json.dumps(summary, indent=2) + "\n")
        return summary

    def withdraw(self) -> bool:
        """Take back a run that has made nothing yet, so that its name is free again; False where there is something."""
        made = ("start", "before.json", "checkpoints", "summary.json", "model")
        if any(self._file(name).exists() for name in made) or self._lines() or any(self._file("episodes").iterdir()):
            return False
        for name in ("config.json", "metrics.jsonl", "lock"):
            self._file(name).unlink(missing_ok=True)
        self._file("episodes").rmdir()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
        return True

    def close(self) -> None:
        """Let another process work here."""
        self._lock.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self, folder: Path) -> None:
        self.folder = folder
        self._began = time.perf_counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the run folder {folder} cannot be made: {error}") from error
        try:
            # The kernel lets go of it when we die, however we die.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise UsageError(
                    f"{folder} cannot be locked ({error.strerror}): two runs in it would spoil each other; "
                    "choose a folder on a file system with locks"
                ) from error
            raise UsageError(
                f"{folder} is in use by {holder}; wait for it, stop it, or choose another folder with --run"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._lock.flush()

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole: a killed process leaves half a line."""
        path, found = self._file("metrics.jsonl"), []
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                found.append(line)
        return found


def _game(episode: Episode) -> tuple[int, int]:
    """What the seats of one game have in common, and no other episode of a step has."""
    return episode.start.task, episode.start.seed


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, or the first of `runs/NAME-2`, `-3`, ... that is free."""
    folder, number = root / name, 2
    while folder.exists():
        folder, number = root / f"{name}-{number}", number + 1
    return folder


def cpu_seconds() -> float:
    """User and system time of this process and the children it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def versions() -> dict[str, str]:
    """What the figures were made with."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is no whole one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
