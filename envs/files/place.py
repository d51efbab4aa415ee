"""The files that an agent may read: those of the task, in memory, and those below one folder, but none outside it.

A path is opened name by name, each from the folder before it, and no link is followed. So a change of the folder
meanwhile cannot lead outside it. `reading` reads the contents of files.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from palaestra.errors import ToolError

LISTED = 1000
"""Largest number of files in a listing."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ResolvedFile(NamedTuple):
    """The file at a path, or at the beginning of a path that continues inside an archive."""

    name: str
    data: bytes
    inner: Sequence[str]
    """Rest of the path. If it is not empty, the file must be an archive."""


@dataclass(frozen=True, slots=True)
class EpisodeFiles:
    """The files that an agent may read in one episode."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path. They take precedence over files of the folder."""
    folder: Path | None = None

    def read(self, path: str, max_bytes: int) -> ResolvedFile:
        """Return the file at a path, or at the beginning of a path into an archive.

        Raise `ToolError` if there is none.
        """
        names = names_of(path)
        for end in range(1, len(names) + 1):
            if (name := "/".join(names[:end])) in self.files:
                data = self.files[name]
                if len(data) > max_bytes:
                    raise too_large(name, len(data), max_bytes)
                return ResolvedFile(name, data, names[end:])
        if self.folder is not None:
            return _read_below(self.folder, names, max_bytes)
        raise _no_file(path, path, list(self.files))

    def listing(self) -> list[str]:
        """Return a line for each file with its size, in order of paths; at most LISTED files."""
        sizes = {name: len(data) for name, data in self.files.items()}
        for name, size in () if self.folder is None else _below(self.folder, ""):
            sizes.setdefault(name, size)
            if len(sizes) > LISTED:
                break
        lines = [f"{name} ({size} bytes)" for name, size in sorted(sizes.items())]
        return lines if len(lines) <= LISTED else [*lines[:LISTED], f"(more than {LISTED} files; these are some)"]


def names_of(path: str) -> list[str]:
    """Return the names along a path. Raise `ToolError` if it leaves the folder, or is empty."""
    if path.startswith("/") or "\0" in path:
        raise ToolError(f"{path[:200]!r} is no path of a file here; expected one such as data/table.csv")
    names = [name for name in path.replace("::", "/").split("/") if name not in ("", ".")]
    if ".." in names or not names:
        raise ToolError(f"{path[:200]!r} leads out of the folder; expected a path such as data/table.csv")
    return names


def too_large(name: str, size: int, max_bytes: int) -> ToolError:
    """Return the error for a file that is larger than the limit."""
    return ToolError(f"{name} has {size} bytes, which is more than file_bytes={max_bytes}, the most that is read")


def _no_file(path: str, name: str, names: Sequence[str]) -> ToolError:
    """Return the error for a path without a file, with the names that are most like `name`."""
    close = get_close_matches(name, names, n=3, cutoff=0.3)
    hint = f"; is {' or '.join(close)} meant?" if close else ""
    return ToolError(f"there is no file {path[:200]!r}{hint}")


def _read_below(folder: Path, names: Sequence[str], max_bytes: int) -> ResolvedFile:
    """Open the names one after the other, each below the folder before it, until one is a file; return that file."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for end, name in enumerate(names, 1):
            path = "/".join(names[:end])
            try:
                below = os.open(name, _OPEN, dir_fd=here)
            except (OSError, ValueError):  # It may also be a link.
                raise _no_file(path, name, sorted(os.listdir(here))) from None
            os.close(here)
            here = below
            status = os.fstat(here)
            if stat.S_ISREG(status.st_mode):
                if status.st_size > max_bytes:
                    raise too_large(path, status.st_size, max_bytes)
                with os.fdopen(os.dup(here), "rb") as file:
                    return ResolvedFile(path, file.read(max_bytes), names[end:])
            if not stat.S_ISDIR(status.st_mode):
                raise ToolError(f"{path} is no file that can be read")
        raise ToolError(f"{'/'.join(names)} is a folder; list_files names what is in it")
    finally:
        os.close(here)


def _below(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield all files below a folder with their sizes, without links, in order of names."""
    try:
        entries = sorted(os.scandir(folder / prefix), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(folder, f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size
