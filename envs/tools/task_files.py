"""The base of toolkits that read a task's files (`file_reader`, `media`): files, budgets, branches.

Files of a task are in memory (`files`) or below a real folder (`folder`); a subclass says which. Left out: what is
read in them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from palaestra.envs.files.place import EpisodeFiles
from palaestra.envs.tools.budgets import BudgetedToolkit, Spent
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError


class TaskFiles(BudgetedToolkit):
    """Base of toolkits that read files. Settings are class attributes: a subclass changes them."""

    _place: EpisodeFiles = EpisodeFiles()

    def folder(self, task: Task) -> Path | str | None:
        """A folder whose files may be read, and nothing outside of it; None for none."""
        return None

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Files that may be read, by path."""
        return {}

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Set the files of the episode."""
        files, folder = self.files(task), self.folder(task)
        if wrong := [name for name, data in files.items() if not isinstance(data, bytes)]:
            raise EnvironmentDefect(f"{type(self).__name__}.files: {wrong[0]!r} holds no bytes; encode a text")
        if folder is not None and not Path(folder).is_dir():
            raise UsageError(f"{type(self).__name__}.folder gave {str(folder)!r}, which is no folder")
        self.restore((EpisodeFiles(dict(files), None if folder is None else Path(folder).resolve()), Spent()))

    def snapshot(self) -> tuple[EpisodeFiles, Spent]:
        """Return files and budgets."""
        return self._place, self.spent

    def restore(self, state: tuple[EpisodeFiles, Spent]) -> None:
        """Continue from a snapshot."""
        self._place, self.spent = state
