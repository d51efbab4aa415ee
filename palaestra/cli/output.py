"""Output of commands: results to standard output, progress and notes to standard error, figures to JSON.

`--json FILE` also writes the results to a file, as one JSON object. With `--json -` standard output has that object
alone, and everything else that palaestra or an environment's author prints goes to standard error.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro

from palaestra.errors import UsageError
from palaestra.shortening import visible

_STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, kw_only=True)
class Reported:
    """The option `--json`, which every command that reports figures has."""

    json: Path | None = None
    """Write the results here too, as one JSON object; `-` prints that object alone on standard output."""


ReportedT = TypeVar("ReportedT", bound=Reported)


def run_reported(
    kind: type[ReportedT], command: str, arguments: Sequence[str], body: Callable[[ReportedT, dict[str, Any]], int]
) -> int:
    """Parse the options of a command and run its `body`, which fills in the results. Return the exit status."""
    options = tyro.cli(kind, args=list(arguments), prog=f"palaestra {command}")
    with reporting(options.json) as figures:
        return body(options, figures)


@contextmanager
def reporting(path: Path | None) -> Iterator[dict[str, Any]]:
    """Yield a dict for the block's results. It is written after the block, unless it is empty or the block fails."""
    figures: dict[str, Any] = {}
    alone = path == _STANDARD_OUTPUT
    if path is not None and not alone:
        require_writable("--json", path)
    with redirect_stdout(sys.stderr) if alone else nullcontext():
        yield figures
    if path is None or not figures:
        return
    text = json.dumps(_finite(figures), indent=2, default=str) + "\n"
    if alone:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} could not be written ({error.strerror}); the figures are above") from error


def say_error(text: str) -> None:
    """Print an error to standard error, with control characters made visible, since it may quote an untrusted file."""
    print(visible(text), file=sys.stderr)


def require_writable(option: str, path: Path) -> None:
    """Raise a UsageError for a file that cannot be written. Call this before the work that the file is for."""
    writable = os.access(path, os.W_OK) and not path.is_dir() if path.exists() else os.access(path.parent, os.W_OK)
    if not writable:
        raise UsageError(f"{option} {path}: a file cannot be written there; name one in a folder that exists")


def _finite(value: Any) -> Any:
    """Return the value with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
