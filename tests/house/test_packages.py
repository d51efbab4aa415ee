"""A package of environments registers them when it is installed, and editors find palaestra's types from outside."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from sources import ROOT
from wheels import bare_python, install, linked_python

pytestmark = pytest.mark.prove

EXAMPLE = ROOT / "examples" / "environment_package"
USER = """
from palaestra.envs import Task, ToolEnv
from palaestra.trainers.grpo import train

reveal_type(train)
reveal_type(ToolEnv.max_turns)
Task(prompt=3)
"""
"""Two types to tell, and one mistake."""


def run_in(folder: Path, *command: object) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_installed_package_registers_its_environments_and_takes_no_id_of_another(
    wheel: Path, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "venv", also=["setuptools"])
    install(python, wheel)
    package = shutil.copytree(EXAMPLE, tmp_path / "package")
    install(python, package)
    pyproject = (package / "pyproject.toml").read_text("utf-8").replace('"multiplication"', '"thief"')
    (package / "pyproject.toml").write_text(pyproject.replace("me/Multiplication-v0", "palaestra/TwoHop-v0"), "utf-8")
    shutil.copytree(package / "multiplication", package / "thief", dirs_exist_ok=True)
    shutil.rmtree(package / "multiplication")
    shutil.rmtree(package / "build", ignore_errors=True)
    install(python, package)
    palaestra = tmp_path / "venv" / "bin" / "palaestra"
    status, said = run_in(tmp_path, palaestra, "list")
    assert (status, "me/Multiplication-v0" in said) == (0, True), said
    assert "thief registers palaestra/TwoHop-v0, which is registered already; it is left out" in said
    status, said = run_in(tmp_path, palaestra, "check", "me/Multiplication-v0", "two-hop")
    assert status == 0, said
    code = "import sys, palaestra; print('multiplication' in sys.modules, 'torch' in sys.modules)"
    assert run_in(tmp_path, python, "-c", code)[1].startswith("False False\n"), "an import of palaestra runs no package"


@pytest.fixture(scope="module")
def editable(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which a clone is installed as `make setup` does it; a user's file beside it."""
    folder = tmp_path_factory.mktemp("editor")
    python = linked_python(folder / "venv", [distribution(name) for name in ("setuptools", "numpy", "gymnasium")])
    install(python, "--editable", tree)
    (folder / "mine.py").write_text(USER, "utf-8")
    return python


def test_mypy_finds_the_types_of_an_editable_install(editable: Path) -> None:
    folder = editable.parents[2]
    command = (sys.executable, "-m", "mypy", "--python-executable", editable, "--cache-dir", folder / "cache")
    status, said = run_in(folder, *command, "mine.py")
    assert (status, said.count("error:")) == (1, 1), said
    assert "palaestra.trainers.run.folder.Run" in said
    assert 'Argument "prompt" to "Task" has incompatible type "int"; expected "str"' in said


def test_pyright_finds_the_types_of_an_editable_install(editable: Path) -> None:
    folder = editable.parents[2]
    command = (sys.executable, "-m", "pyright")
    if run_in(folder, *command, "--version")[0] != 0:
        pytest.skip("pyright is not installed, or its program cannot be fetched")
    status, said = run_in(folder, *command, "--pythonpath", editable, "mine.py")
    assert (status, said.count(" error: ")) == (1, 1), said
    assert "(run: Run, *," in said
    assert 'cannot be assigned to parameter "prompt"' in said
