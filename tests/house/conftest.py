"""The tests of this room share `pages`, `sources` and `wheels`; the pages share one folder of runs, the others a wheel.

The wheel is built from what git would hand to a stranger: build leftovers of this checkout cannot hide a forgotten
package.
"""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))  # fake_server
sys.path.insert(0, str(Path(__file__).parent))

from sources import ROOT
from wheels import run

PLACES = {"palaestra": "palaestra"} | {room: f"palaestra/{room}" for room in ("envs", "agents", "trainers")}


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `runs/first` is, once a page has trained it."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks or would track, links kept as links."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nobody knows which files belong to it")
    copy = tmp_path_factory.mktemp("tree")
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # deleted but not yet committed, or another test's, gone since it was listed
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="session")
def expected(tree: Path) -> set[str]:
    """Where each Python file of the tree belongs in the wheel."""
    found = set()
    for room, place in PLACES.items():
        for directory, _, files in os.walk(tree / room, followlinks=False):
            inside = Path(directory).relative_to(tree / room)
            found |= {(place / inside / name).as_posix() for name in files if name.endswith(".py")}
    return found


@pytest.fixture(scope="session")
def wheel(tree: Path, expected: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`expected` is asked for first, so that it sees the tree before the build writes into it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", target, wheel)
    return target
