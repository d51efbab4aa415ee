"""The episodes of a collection (FILE.played.jsonl), and the settings that they are played with (FILE.collect.json).

Left out: the file itself (`episode_file`), playing and choosing episodes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from palaestra.cli.episode_file import EpisodeFile
from palaestra.episode import Episode, Start
from palaestra.errors import UsageError
from palaestra.record import Record
from palaestra.trainers.run.atomic_files import write_text

_SEED, _SAMPLE = 44, 32
"""Lowest bits of the run's seed and of the sample's number in a Start's seed; the bits of the task are below."""
MOST_SAMPLES = 2 ** (_SEED - _SAMPLE)


def start_of(seed: int, task: int, sample: int) -> Start:
    """Return the Start of a task's sample in a run. It depends only on these numbers, so more can be played later."""
    return Start(task=task, seed=(seed << _SEED) + (sample << _SAMPLE) + task, group=task)


class RolloutFile(EpisodeFile):
    """The episodes of one collection."""

    def __init__(
        self, out: Path, env_id: str, agent: str, seed: int, settings: Mapping[str, Any], *, synthetic: bool = False
    ) -> None:
        """`settings` holds everything else that decides an episode: plain values, which must not change later."""
        self.done: set[tuple[int, int]] = set()
        """Task and seed of each Start that was scored."""
        self._synthetic = synthetic
        path, about = out.with_name(f"{out.stem}.played.jsonl"), out.with_name(f"{out.stem}.collect.json")
        if out.exists() and not (path.exists() or about.exists()):
            raise UsageError(f"{out} exists, and no collection has made it; remove it, or name another file with --out")
        super().__init__(path, about, {"env_id": env_id, "agent": agent, "seed": seed, **settings})

    def add(self, episode: Episode) -> None:
        """Append an episode to the file."""
        about = self._settings
        self._recorder.add(
            Record(about["env_id"], episode, dict(about["options"]), about["agent"], (), self._synthetic)
        )
        if episode.reward is not None:
            self.done.add((episode.start.task, episode.start.seed))

    def records(self, starts: Sequence[Start]) -> list[Record]:
        """Return one record for each of these Starts that was played, in their order. If several tries of a Start are
        recorded, it is the scored one."""
        records: dict[tuple[int, int], Record] = {}
        for record in self.every(starts):
            key = record.episode.start.task, record.episode.start.seed
            if key not in records or records[key].episode.reward is None:
                records[key] = record
        keys = [(start.task, start.seed) for start in starts]
        return [records[key] for key in keys if key in records]

    def every(self, starts: Sequence[Start]) -> Iterator[Record]:
        """Yield all records of these Starts in the order of the file, also BROKEN ones and their repetitions."""
        keys = {(start.task, start.seed) for start in starts}
        for record in self._scanned():
            if (record.episode.start.task, record.episode.start.seed) in keys:
                yield record

    @property
    def weights(self) -> str:
        """Digest of the weights that play; "" if it is not known."""
        return str(self._settings.get("weights", ""))

    def summarise(self, figures: Mapping[str, Any]) -> None:
        """Write the figures beside the settings of the collection."""
        write_text(self.about, json.dumps({**self._settings, **figures}, indent=2) + "\n")

    def _note_played(self, record: Record) -> None:
        now = {name: self._settings[name] for name in ("env_id", "agent", "seed", "options")}
        now["env_id"] = now["env_id"].rpartition(":")[2]
        start, env_id = record.episode.start, record.env_id.rpartition(":")[2]
        then = (env_id, record.agent, start.seed >> _SEED, dict(record.options))
        self._refuse(dict(zip(now, then, strict=True)), now)
        if record.episode.reward is not None:
            self.done.add((start.task, start.seed))
