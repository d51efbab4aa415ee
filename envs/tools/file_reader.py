"""The `file_reader` tool: documents, tables and archives as text, shown through a window of limited tokens.

It reads PDF, docx, pptx, xlsx, csv, json, jsonl, xml, html, programs and any other text. The content decides the kind,
not the name. Members of a zip have paths such as data.zip/table.csv. Left out: images and sound (`media`), and writing.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from palaestra.envs.core import window
from palaestra.envs.core.tool import tool
from palaestra.envs.files.limits import ReadLimits
from palaestra.envs.files.reading import lines_of, require_readers
from palaestra.envs.tools.task_files import TaskFiles
from palaestra.episode import Task

WAIT_SECONDS = 300.0
"""Timeout of a call in seconds, with time for waiting while other episodes read."""


class FileReader(TaskFiles):
    """Reads files; a subclass defines which, by `folder(task)` or `files(task)`."""

    read_limits: ReadLimits = ReadLimits()
    window_tokens: int = 1024
    """Tokens of a file that are shown at once."""

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Set the files of the episode. Raise MissingExtra if a library for reading them is missing."""
        require_readers()
        super().start(task, rng)

    @tool(timeout=WAIT_SECONDS)
    async def file_reader(
        self, path: str, first_line: Annotated[int, Field(ge=1)] = 1, last_line: int | None = None
    ) -> str:
        """Read a file as text: pdf, docx, pptx, xlsx, csv, json, xml, html, any plain text; or the members of a zip.

        Args:
            path: Path of the file, such as data/table.csv, or data.zip/table.csv inside a zip.
            first_line: Line to begin at; long files are shown in parts.
            last_line: Line to end at.
        """
        return window.view(await self._lines(path), first_line, self.window_tokens, last_line)

    @tool(timeout=WAIT_SECONDS)
    async def find_in_file(self, path: str, pattern: str) -> str:
        """Find the lines of a file that hold some words, in any case."""
        return window.find(await self._lines(path), pattern)

    @tool(timeout=WAIT_SECONDS)
    async def list_files(self) -> str:
        """List the files that can be read, with their sizes."""
        lines = await asyncio.to_thread(self._place.listing)
        return window.view(lines, 1, self.window_tokens) if lines else "(there are no files)"

    async def _lines(self, path: str) -> Sequence[str]:
        async def read(seconds: float) -> Sequence[str]:
            file = await self.read_file(path, self.read_limits.file_bytes)
            return await lines_of(file, self.read_limits, seconds)

        return await self.within_budget(read)
