"""Results on disk: one file for each comparison, one line for each run. A run with other settings does not count."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from one_run import settings
from parts import COMPARISONS, STARTS


def digest(name: str, arm: str, seed: int) -> str:
    """Return a digest of a run's settings and of how its start model is made."""
    run_settings = settings(COMPARISONS[name], COMPARISONS[name].arms[arm], seed)
    text = json.dumps([run_settings, repr(STARTS[run_settings["start"]]), COMPARISONS[name].controls], sort_keys=True)
    return blake2b(text.encode(), digest_size=8).hexdigest()


class Results:
    """The runs of all files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._lines = folder, dict[tuple[str, str, int], dict[str, Any]]()
        for name in COMPARISONS:
            path = folder / f"{name}.jsonl"
            for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
                self._take(name, json.loads(text))

    def has(self, name: str, arm: str, seed: int) -> bool:
        """Return whether the run is there."""
        return (name, arm, seed) in self._lines

    def add(self, name: str, figures: Mapping[str, Any]) -> None:
        """Write a run to disk at once: the study may be stopped at any time."""
        line = {**figures, "digest": digest(name, figures["arm"], figures["seed"])}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._take(name, line)

    def of(self, name: str, arm: str) -> dict[int, dict[str, Any]]:
        """Return the runs of an arm, by seed."""
        return {seed: line for (one, other, seed), line in sorted(self._lines.items()) if (one, other) == (name, arm)}

    def _take(self, name: str, line: dict[str, Any]) -> None:
        arm, seed = line["arm"], line["seed"]
        if arm in COMPARISONS[name].arms and line["digest"] == digest(name, arm, seed):
            self._lines[name, arm, seed] = line
