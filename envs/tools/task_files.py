"""The base of toolkits that read a task's files (`file_reader`, `media`): files, budgets, branches.

A subclass defines the files: in memory (`files`) or below a real folder (`folder`). Left out: how their content is
read.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from palaestra.envs.files.place import EpisodeFiles, ResolvedFile
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, ToolError, UsageError


class TaskFiles(BudgetedToolkit):
    """Base of toolkits that read files. Settings are class attributes: a subclass changes them."""

    _place: EpisodeFiles = EpisodeFiles()

    def folder(self, task: Task) -> Path | str | None:
        """Return a folder; only files below it may be read. None means that there is no folder."""
        return None

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Return the files in memory that may be read, by path."""
        return {}

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Set the files of the episode."""
        files, folder = self.files(task), self.folder(task)
        if wrong := [name for name, data in files.items() if not isinstance(data, bytes)]:
            raise EnvironmentDefect(f"{type(self).__name__}.files: {wrong[0]!r} holds no bytes; encode a text")
        if folder is not None and not Path(folder).is_dir():
            raise UsageError(f"{type(self).__name__}.folder gave {str(folder)!r}, which is no folder")
        self.restore((EpisodeFiles(dict(files), None if folder is None else Path(folder).resolve()), BudgetUsage()))

    async def read_file(self, path: str, max_bytes: int) -> ResolvedFile:
        """Return a file of the episode. Raise ToolError if it cannot be read."""
        try:
            return await asyncio.to_thread(self._place.read, path, max_bytes)
        except OSError as error:  # An error of the folder itself; a wrong path of an agent raises ToolError.
            raise ToolError(f"{path[:200]} cannot be read: {error.strerror}") from None

    def snapshot(self) -> tuple[EpisodeFiles, BudgetUsage]:
        """Return files and budgets."""
        return self._place, self.usage

    def restore(self, state: tuple[EpisodeFiles, BudgetUsage]) -> None:
        """Continue from a snapshot."""
        self._place, self.usage = state
