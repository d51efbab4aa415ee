"""What the tests of the wheel share: a command run to its end, and environments with some libraries alone."""

import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def run(*command: object, **options: object) -> str:
    """Run a command with a deadline; fail with all that it said."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bare_python(folder: Path, extras: Iterable[str] = (), also: Iterable[str] = ()) -> Path:
    """The Python of a virtual environment without palaestra, with links to what pip would install beside it for these
    extras, and to the distributions in `also`.

    The links lead to what is installed beside this very Python, so nothing is fetched and nothing else is seen.
    """
    needed = closure(Requirement(f"palaestra[{','.join(extras)}]")).values()
    return linked_python(folder, [*needed, *map(distribution, also)])


def linked_python(folder: Path, distributions: Iterable[Distribution]) -> Path:
    """The Python of a new virtual environment with links to these installed distributions, and without pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    place = packages_of(folder / "bin" / "python")
    for found in distributions:
        for name in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (place / name).is_symlink():  # Some distributions share a folder.
                (place / name).symlink_to(found.locate_file(name))
    return folder / "bin" / "python"


def packages_of(python: Path) -> Path:
    """Where an environment keeps its packages."""
    (place,) = python.parents[1].glob("lib/python3.*/site-packages")
    return place


def install(python: Path, *what: object) -> None:
    """Let pip install what is on this disk into an environment that needs no pip of its own."""
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--no-index")
    run(*pip, "--quiet", "--no-deps", "--no-build-isolation", *what)


def closure(wanted: Requirement, seen: dict[str, Distribution] | None = None) -> dict[str, Distribution]:
    """The installed distributions that a requirement needs, without palaestra, by name."""
    seen = {} if seen is None else seen
    found = distribution(wanted.name)
    for line in found.requires or ():
        needed = Requirement(line)
        name, asked = canonicalize_name(needed.name), {"", *wanted.extras}
        if name not in seen and (not needed.marker or any(needed.marker.evaluate({"extra": one}) for one in asked)):
            seen[name] = distribution(needed.name)
            closure(needed, seen)
    return seen
