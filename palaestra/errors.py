"""Every error palaestra raises on purpose, in one tree.

    PalaestraError
    ├── UsageError            a caller broke a rule of the interface (also a ValueError)
    │   ├── UnknownId         no environment of that id; names the closest ones
    │   ├── ConfigError       an option is unknown or out of range
    │   ├── SpendingLimit     a server was asked for as much as the caller allows
    │   ├── TaskFileError     a file of tasks is wrong: names the rows
    │   └── UnknownTask       a demonstrator does not know how to play this task
    ├── MissingExtra          an optional library is absent; names the install command (also an ImportError)
    ├── SandboxUnavailable    this machine lacks the requested isolation; names what is missing and what helps
    ├── RecordError           a line of an episode file is cut off, changed or not a record
    ├── EnvironmentDefect     an environment's author got something wrong: a tool, a reward, a task
    ├── ToolError             a tool's answer to a bad request; the agent reads it, callers do not catch it
    ├── Broken                the infrastructure failed; the episode ends BROKEN and is never scored
    └── TrainingHalted        the run must stop: too many broken episodes, a full disk, engine and trainer disagree

Three kinds of failure are kept apart: the agent's mistake becomes an observation (`ToolError`, or any exception of a
tool), a mistake in code raises an exception, and a failure of the infrastructure is `Broken`.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class PalaestraError(Exception):
    """Base class of all errors that palaestra raises on purpose."""


class UsageError(PalaestraError, ValueError):
    """A caller broke a rule of the interface."""


class UnknownId(UsageError):
    """No environment is registered under the given id."""

    def __init__(self, env_id: str, known_ids: Iterable[str]) -> None:
        known_ids = sorted(known_ids)
        # Compare the names alone: with "palaestra/" and "-v0" a typing error would hardly change the similarity.
        names = {plain_name(known_id): known_id for known_id in known_ids}
        same = [known_id for known_id in known_ids if plain_name(known_id) == plain_name(env_id)]
        near = [names[name] for name in get_close_matches(plain_name(env_id), names, n=3, cutoff=0.75)]
        self.near_ids = same or near or get_close_matches(env_id, known_ids, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(self.near_ids)}?" if self.near_ids else f"known ids: {', '.join(known_ids)}"
        note = "(an id of your own exists once the module that registers it is imported"
        form = "" if ":" in env_id else f"; its name goes before the id: MODULE:{env_id}"
        super().__init__(f"no environment is registered as {env_id!r}; {hint} {note}{form})")


def plain_name(env_id: str) -> str:
    """Return the name alone, as the command line takes it: twohop for palaestra/TwoHop-v0."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[-_]v\d+$", "", env_id.rpartition("/")[2]).lower())


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return "; did you mean 'NAME'?" with the known name that is closest; "" if none is close."""
    close = get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_name(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the error text for an unknown name: it suggests the closest known name, or lists all if none is close."""
    hint = did_you_mean(name, names) or f"; expected one of {', '.join(names)}"
    return f"unknown {kind} {name!r}{hint}"


class ConfigError(UsageError):
    """An option is unknown or its value is out of range."""


class SpendingLimit(UsageError):
    """The requests to a server have reached the most that they may cost, or their tokens the most that may be used."""


class TaskFileError(UsageError):
    """The content of a file of tasks is wrong. `faults` describes the first wrong rows, `count` counts all."""

    SHOWN = 5

    def __init__(self, path: str, summary: str, faults: Sequence[str] = (), count: int = 0) -> None:
        self.summary, self.faults, self.count = summary, tuple(faults), max(count, len(faults))
        lines = [f"{path}: {summary}", *(f"  {fault}" for fault in self.faults[: self.SHOWN])]
        if self.count > self.SHOWN:
            lines.append(f"  and {self.count - self.SHOWN} more; 'palaestra data {path} --env ID' lists them")
        super().__init__("\n".join(lines))


class UnknownTask(UsageError):
    """A demonstrator does not know how to play this task."""

    def __init__(self, prompt: str) -> None:
        flat_prompt = " ".join(prompt.split())
        text = flat_prompt if len(flat_prompt) <= 80 else f"{flat_prompt[:77]}..."
        super().__init__(
            f"the demonstrator does not know how to play {text!r}; let a model play, or register a demonstrator of "
            "your own for such tasks"
        )


class MissingExtra(PalaestraError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, purpose: str, remedy: str = "") -> None:
        """Format the message. `remedy` is an install command for a library that pip does not install."""
        remedy = remedy or f"pip install 'palaestra[{extra}]'"
        super().__init__(f"{purpose} needs {library}, which is not installed: {remedy}")


class SandboxUnavailable(PalaestraError):
    """The requested isolation is not available on this machine, and nothing weaker is used instead."""

    def __init__(self, backend: str, missing: str, remedies: Iterable[str] = ()) -> None:
        super().__init__("\n  ".join([f"sandbox {backend!r}: {missing}", *remedies]))


class RecordError(PalaestraError):
    """A line of an episode file was cut off, was changed, or is not a record."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}, line {line}: {reason}")


class EnvironmentDefect(PalaestraError):
    """An environment's code has an error; the message says what to change."""


class ToolError(PalaestraError):
    """Raised by a tool to tell the agent why its request could not be served."""


class Broken(PalaestraError):
    """The infrastructure failed, and the agent cannot have faked that: a process did not start, a server ended."""


class TrainingHalted(PalaestraError):
    """A further step would train on wrong data; the message says which check failed."""
