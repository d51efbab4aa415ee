"""Which libraries are installed, whether palaestra supports their versions, and what each extra enables.

Ranges come from palaestra's own package metadata, so they are those that pip goes by. Nothing is imported here: what
is installed and cannot be imported is found by `machine.torch_findings`. Left out: pre-releases, which count as their
release, and operators other than those of plain ranges, of which nothing is said.
"""

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util

from palaestra.cli.finding import Finding

PURPOSES = {
    "train": "play and train models in this process",
    "plot": "draw the curves of a run as images",
    "endpoint": "play against a model behind an HTTP API",
    "data": "read tasks from parquet files",
    "games": "show games of several seats to PettingZoo's tools",
    "code": "grade mathematics, and play HumanEval-v0 and Reasoning-v0",
    "docker": "run agents' programs in containers",
    "serve": "offer a sandbox to other machines",
    "dev": "work on palaestra itself",
}
"""What each extra enables."""
BASIC_EXTRA = "train"
"""The extra without which no agent is trained."""
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_CLAUSE = re.compile(r"^\s*(>=|<=|==|!=|~=|>|<)\s*v?([0-9]+(?:\.[0-9]+)*)[^,]*$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of the metadata."""

    name: str
    supported: str
    """The range, as the metadata spells it; empty where any version will do."""
    extra: str = ""
    """Empty for what is always installed."""


def requirements(distribution: str = "palaestra") -> list[Requirement]:
    """What a distribution requires; extras that name its own extras are left out, for those stand there themselves."""
    found = []
    for line in metadata.requires(distribution) or []:
        parts = _REQUIREMENT.match(line)
        if parts is None or parts[1].lower() == distribution:
            continue
        extra = _EXTRA.search(parts[4] or "")
        clauses = sorted((clause.strip() for clause in parts[3].split(",")), reverse=True)
        found.append(Requirement(parts[1], ",".join(clauses), extra[1] if extra else ""))
    return found


def supports(supported: str, version: str) -> bool | None:
    """Whether a version lies in a range; None where the range or the version is not understood."""
    found = re.match(r"v?(?:\d+!)?([0-9]+(?:\.[0-9]+)*)", version)
    if found is None:
        return None
    have, verdict = _numbers(found[1]), True
    for clause in filter(None, supported.split(",")):
        parts = _CLAUSE.match(clause)
        if parts is None:
            return None
        operator, want = parts[1], _numbers(parts[2])
        if clause.rstrip().endswith(".*"):
            same = have[: len(want)] == want
            verdict = verdict and (same if operator == "==" else not same)
            continue
        width = max(len(have), len(want))
        left, right = (numbers + (0,) * (width - len(numbers)) for numbers in (have, want))
        verdict = (
            verdict
            and {
                ">=": left >= right,
                "<=": left <= right,
                "==": left == right,
                "!=": left != right,
                ">": left > right,
                "<": left < right,
                "~=": left >= right and left[: len(want) - 1] == right[: len(want) - 1],
            }[operator]
        )
    return verdict


def library_findings() -> Iterator[Finding]:
    """Python, palaestra, then a line a library, and after each extra's libraries what it enables."""
    import palaestra

    python = f"{platform.python_version()} ({sys.executable})"
    try:
        installed, wanted = metadata.version("palaestra"), requirements()
        supported = "".join(metadata.metadata("palaestra").get_all("Requires-Python") or [])
    except metadata.PackageNotFoundError:
        yield Finding("python", python)
        yield Finding(
            "palaestra",
            f"{palaestra.__version__}, run from its sources: it is not installed, so supported versions are not known",
            "broken",
            "pip install -e '.[train]' in its folder",
            vital=True,
        )
        return
    if supports(supported, platform.python_version()) is False:
        yield Finding("python", f"{python} is not supported (needs {supported})", "broken", vital=True)
    else:
        yield Finding("python", f"{python} (needs {supported})")
    if installed == palaestra.__version__:
        yield Finding("palaestra", f"{installed} ({palaestra.__path__[0]})")
    else:
        yield Finding(
            "palaestra",
            f"{palaestra.__version__}, but was installed as {installed}: its requirements may be out of date",
            "warning",
            "pip install again in its folder",
        )
    yield from (_library(one) for one in wanted if not one.extra)
    for extra in dict.fromkeys(one.extra for one in wanted if one.extra):
        lines = [_library(one) for one in wanted if one.extra == extra]
        if extra != "dev":  # Its dozen lines would bury the others.
            yield from lines
        absent = [line.about for line in lines if line.state != "ok"]
        yield Finding(
            f"extra {extra}",
            PURPOSES.get(extra, "") + (f"; not ready: {', '.join(absent)}" if absent else ""),
            "missing" if absent else "ok",
            f"pip install 'palaestra[{extra}]'" if absent else "",
            vital=extra == BASIC_EXTRA,
        )


def _library(wanted: Requirement) -> Finding:
    """One library: there or not, and in range or not."""
    extra, vital = wanted.extra, wanted.extra in ("", BASIC_EXTRA)
    install = f"pip install 'palaestra[{extra}]'" if extra else f"pip install '{wanted.name}{wanted.supported}'"
    needs = f"needs {wanted.supported}" if wanted.supported else "any version will do"
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Finding(wanted.name, f"not installed ({needs})", "missing", install, vital)
    if not _findable(wanted.name):
        return Finding(
            wanted.name,
            f"{version} is listed as installed, but cannot be imported",
            "broken",
            f"pip install --force-reinstall '{wanted.name}{wanted.supported}'",
            vital,
        )
    fits = supports(wanted.supported, version)
    if fits is None:
        return Finding(wanted.name, f"{version} ({needs}; the two could not be compared)", "warning")
    if not fits:
        return Finding(
            wanted.name, f"{version} ({needs})", "broken", f"pip install '{wanted.name}{wanted.supported}'", vital
        )
    return Finding(wanted.name, f"{version} ({needs})")


def findable(module: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # Import hooks answer in their own ways.
        return False


def _findable(name: str) -> bool:
    """Whether the module of a distribution can be found; any of its modules, where none is called as it is."""
    listed = (metadata.distribution(name).read_text("top_level.txt") or "").split()
    own = name.replace("-", "_").lower()
    return findable(own) if own in listed or not listed else any(findable(module) for module in listed)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
