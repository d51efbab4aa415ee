"""Checks of a caller's arguments before they are sent. Every backend refuses the same values with the same messages."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.sandbox import Program
from palaestra.errors import UsageError


def words_of(program: Program) -> list[str] | None:
    """Return the words of a command, or None if the program is Python source."""
    if isinstance(program, str):
        return None
    if isinstance(program, bytes | bytearray) or not isinstance(program, Sequence):
        raise _unexpected("program", program, "Python source as a str, or a command as a list of words")
    words = list(program)
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError(f"a command is {words!r}; expected at least one word, each a string")
    return words


def content(what: str, data: Any) -> bytes:
    """Return the data as bytes; raise UsageError if they are of another type."""
    if type(data) is bytes:
        return data
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    hint = "; encode the text" if isinstance(data, str) else ""
    raise _unexpected(what, data, f"bytes{hint}")


def path_of(path: Any) -> str:
    """Return the path of a file in a session as a string."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise _unexpected("path", path, "a str or a Path, relative to the session's folder")
    return text


def files_of(files: Mapping[str, bytes] | None, limits: Limits | None = None) -> dict[str, bytes]:
    """Return a session's initial files as a dict; raise UsageError if a type is wrong or they do not fit the limits."""
    if not files and (files is None or isinstance(files, Mapping)):
        return {}
    if not isinstance(files, Mapping):
        raise _unexpected("files", files, "a mapping of paths to bytes")
    contents = {path_of(path): content(f"file {path}", data) for path, data in files.items()}
    if limits is not None:
        check_sizes(contents, limits)
    return contents


def check_sizes(files: Mapping[str, bytes], limits: Limits) -> None:
    """Raise UsageError if the files do not fit the limits."""
    for path, data in files.items():
        if len(data) > limits.file_bytes:
            raise UsageError(f"file {path} has {len(data)} bytes; limit file_bytes is {limits.file_bytes}")
    size = sum(map(len, files.values()))
    if size > limits.scratch_bytes or len(files) > limits.scratch_files:
        raise UsageError(
            f"{len(files)} files of {size} bytes together; limit scratch_files is {limits.scratch_files}, "
            f"limit scratch_bytes {limits.scratch_bytes}"
        )


def seconds_of(timeout: Any) -> float:
    """Return the timeout of a run in seconds; raise UsageError unless it is a positive number."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise UsageError(f"timeout is {timeout!r}; expected a positive number of seconds")
    return float(timeout)


def _unexpected(what: str, value: object, expected: str) -> UsageError:
    text = repr(value)
    return UsageError(f"{what} is {text[:60]}{'...' * (len(text) > 60)} ({type(value).__name__}); expected {expected}")
