"""The files that a toolkit lays out in the working folder, looked at before an episode begins.

A mistake in them is its author's and must not reach the agent, who could do nothing about it. Left out: laying them out
(`envs.sandboxes`).
"""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.arguments import check_sizes
from palaestra.envs.sandboxes.runner.files import DEPTH, NAME_BYTES
from palaestra.errors import EnvironmentDefect, UsageError


def checked(files: Any, owner: str, limits: Limits) -> dict[str, bytes]:
    """The files by path, or an EnvironmentDefect of the class `owner` that says what is wrong with them."""
    if not isinstance(files, Mapping):
        raise EnvironmentDefect(f"{owner}.files gave a {type(files).__name__}; expected a dict of paths to bytes")
    for path, data in files.items():
        if fault := _fault(path, data) or ("" if _free(path, files) else "lies in another file"):
            raise EnvironmentDefect(f"{owner}.files: {str(path)[:80]!r} {fault}")
    try:
        check_sizes(files, limits)
    except UsageError as error:
        raise EnvironmentDefect(f"{owner}.files: {error}") from None
    return dict(files)


def _fault(path: Any, data: Any) -> str:
    if not isinstance(path, str):
        return f"is a {type(path).__name__}; expected the path as text"
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or path.startswith("/") or path.endswith("/") or ".." in names or "\0" in path:
        return "is no path of a file below the working folder; expected one such as data/orders.csv"
    if len(names) > DEPTH or any(len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES for name in names):
        return f"is too long; a path may have {DEPTH} names of {NAME_BYTES} bytes"
    if not isinstance(data, bytes):
        hint = "; encode the text: text.encode()" if isinstance(data, str) else ""
        return f"holds a {type(data).__name__}; expected bytes{hint}"
    return ""


def _free(path: str, files: Mapping[str, bytes]) -> bool:
    return not any(str(folder) in files for folder in PurePosixPath(path).parents)
