"""The wheel holds every module of the tree under one import name, and works where the tree is not."""

import json
import os
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from wheels import run


def test_the_wheel_holds_every_module_and_no_other(wheel: Path, expected: set[str]) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {name for name in names if name.endswith(".py")}
    assert expected - modules == set(), "list their packages under [tool.setuptools] packages in pyproject.toml"
    assert modules - expected == set()


def test_the_wheel_holds_what_the_viewers_page_is_made_of(wheel: Path, tree: Path) -> None:
    names, folder = set(zipfile.ZipFile(wheel).namelist()), tree / "trainers" / "view" / "pages"
    parts = {path.relative_to(folder).as_posix() for kind in ("css", "js") for path in folder.rglob(f"*.{kind}")}
    assert parts
    assert {f"palaestra/trainers/view/pages/{part}" for part in parts} <= names


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


@pytest.mark.prove
def test_every_module_of_the_installed_wheel_is_importable(installed: Path, expected: set[str], tmp_path: Path) -> None:
    modules = sorted(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in expected)
    modules.remove("palaestra.__main__")
    others = ("palaestra.interop.", "palaestra.envs.foreign.inspect_evaluation")  # They import other projects.
    modules = [name for name in modules if not name.startswith(others)]
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
