"""The wheel holds every module of the tree under one import name, and works where the tree is not.

Built from what git would hand to a stranger: build leftovers of this checkout cannot hide a forgotten package.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = {"palaestra": "palaestra"} | {room: f"palaestra/{room}" for room in ("envs", "agents", "trainers")}


def run(*command: object, **options: object) -> str:
    """Run a command with a deadline; fail with all that it said."""
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


def test_the_wheel_holds_every_module_and_no_other(wheel: Path, expected: set[str]) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {name for name in names if name.endswith(".py")}
    assert expected - modules == set(), "list their packages under [tool.setuptools] packages in pyproject.toml"
    assert modules - expected == set()


def test_the_wheel_holds_what_the_viewers_page_is_made_of(wheel: Path, tree: Path) -> None:
    names, folder = set(zipfile.ZipFile(wheel).namelist()), tree / "trainers" / "viewer"
    parts = {path.relative_to(folder).as_posix() for kind in ("css", "js") for path in folder.rglob(f"*.{kind}")}
    assert parts
    assert {f"palaestra/trainers/viewer/{part}" for part in parts} <= names


def test_the_wheel_owns_one_top_level_name(wheel: Path) -> None:
    """A wheel with a top-level `agents` would overwrite another project's package of that name, silently."""
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"palaestra"}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    import palaestra

    archive = zipfile.ZipFile(wheel)
    (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
    assert metadata["Version"] == palaestra.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert {"train", "plot", "dev"} <= set(metadata.get_all("Provides-Extra"))
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert "palaestra/py.typed" in archive.namelist()
    assert "palaestra = palaestra.cli:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_every_module_of_the_installed_wheel_is_importable(installed: Path, expected: set[str], tmp_path: Path) -> None:
    modules = sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in expected)
    modules.remove("palaestra.__main__")
    code = """
import importlib, json, sys
print(json.dumps({name: importlib.import_module(name).__file__ for name in sys.argv[1:]}))
"""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    said = run(sys.executable, "-c", code, *modules, cwd=tmp_path, env=environment)
    files = json.loads(said.splitlines()[-1])
    strays = {name: file for name, file in files.items() if not Path(file).is_relative_to(installed)}
    assert strays == {}, "these came from elsewhere than the wheel"


def test_the_command_line_of_the_installed_wheel_answers(installed: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    assert "demo" in run(sys.executable, "-m", "palaestra", "--help", cwd=tmp_path, env=environment)
