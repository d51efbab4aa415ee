"""Show several runs on one page: their curves, their evaluation results, and the differences of their configs.

`page.write` takes a `RunComparison` in place of a `Collection`. Left out: episodes, which are on the page of each run.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from palaestra.record import Record
from palaestra.trainers.run.json_files import read_object
from palaestra.trainers.validation import flat
from palaestra.trainers.view.pages.episode_view import as_text
from palaestra.trainers.view.pages.eval_results import measurements
from palaestra.trainers.view.pages.load_episodes import Collection


class RunComparison:
    """Data of several runs, for one page."""

    def __init__(self, paths: Sequence[Path]) -> None:
        runs = list({path.resolve(): path for path in paths}.values())
        self.run: Path | None = None
        self.entries: list[dict[str, Any]] = []
        self._runs = [(path, Collection([path])) for path in runs]

    def news(self) -> Iterator[Record]:
        """Read the metrics of the runs; there are no episodes to yield."""
        for _, collection in self._runs:
            collection.read_metrics()
        yield from ()

    def require_something(self) -> None:
        """Do nothing, because runs without metrics can be compared by their configs."""

    def defects(self) -> list[dict[str, Any]]:
        """Return the lines that could not be read, with the name of their run."""
        return [
            defect | {"file": f"{name}/{defect['file']}"}
            for name, (_, collection) in zip(self._names(), self._runs, strict=True)
            for defect in collection.defects()
        ]

    def state(self) -> dict[str, Any]:
        """Return the data of the page."""
        names = self._names()
        runs = [
            {"name": name, "metrics": collection.metrics, "measured": measurements(path)}
            for name, (path, collection) in zip(names, self._runs, strict=True)
        ]
        nothing: dict[str, Any] = {key: [] for key in ("episodes", "metrics", "vocabulary", "settings", "measured")}
        about = {"name": f"{len(runs)} runs", "live": False, "more": False, "defects": self.defects()}
        return {**nothing, **about, "runs": runs, "differences": self._differences()}

    def _names(self) -> list[str]:
        """Return the names of the folders, or their paths if two names are equal."""
        short = [path.resolve().name for path, _ in self._runs]
        return short if len(set(short)) == len(short) else [str(path) for path, _ in self._runs]

    def _differences(self) -> list[list[Any]]:
        """Return each setting that differs between runs, with its value in each run; None if a run lacks it."""
        configs = [_config(path) for path, _ in self._runs]
        keys = dict.fromkeys(key for config in configs for key in config)
        rows = [[key, [config.get(key) for config in configs]] for key in keys]
        return [row for row in rows if len(set(row[1])) > 1]


def _config(run: Path) -> dict[str, str]:
    try:
        return {key: as_text(value) for key, value in flat(read_object(run / "config.json") or {}).items()}
    except RecursionError:
        return {}
