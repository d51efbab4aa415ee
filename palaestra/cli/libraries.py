"""Which libraries are installed, whether palaestra supports their versions, and what each extra enables.

Ranges come from palaestra's own package metadata, so they are those that pip goes by. Left out: importing what is
installed, which `machine.torch_findings` tries.
"""

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

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
_EXTRA = re.compile(r"""extra == ["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class Needed:
    """A library that palaestra needs."""

    name: str
    supported: SpecifierSet
    extra: str = ""
    """Empty for what is always installed."""


def needed_libraries() -> list[Needed]:
    """What palaestra requires; extras that name its own extras are left out, for those stand there themselves."""
    found = []
    for line in map(Requirement, metadata.requires("palaestra") or ()):
        extra = _EXTRA.search(str(line.marker or ""))
        if line.name != "palaestra":
            found.append(Needed(line.name, line.specifier, extra[1] if extra else ""))
    return found


def library_findings() -> Iterator[Finding]:
    """Python, palaestra, then a line a library, and after each extra's libraries what it enables."""
    import palaestra

    python = f"{platform.python_version()} ({sys.executable})"
    try:
        installed, wanted = metadata.version("palaestra"), needed_libraries()
        supported = SpecifierSet(metadata.metadata("palaestra")["Requires-Python"] or "")
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
    if not supported.contains(platform.python_version(), prereleases=True):
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


def _library(wanted: Needed) -> Finding:
    """One library: there or not, and in range or not."""
    extra, vital = wanted.extra, wanted.extra in ("", BASIC_EXTRA)
    supported = ",".join(sorted(map(str, wanted.supported), reverse=True))
    fitting = f"'{wanted.name}{supported}'"
    install = f"pip install 'palaestra[{extra}]'" if extra else f"pip install {fitting}"
    needs = f"needs {supported}" if supported else "any version will do"
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Finding(wanted.name, f"not installed ({needs})", "missing", install, vital)
    if not _findable(wanted.name):
        text = f"{version} is listed as installed, but cannot be imported"
        return Finding(wanted.name, text, "broken", f"pip install --force-reinstall {fitting}", vital)
    if not wanted.supported.contains(version, prereleases=True):
        return Finding(wanted.name, f"{version} ({needs})", "broken", f"pip install {fitting}", vital)
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
