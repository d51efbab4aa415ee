"""The wheel with each extra alone, away from the repository: what is not installed is named, never called failed."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import environment
from sources import ROOT
from wheels import bare_python

pytestmark = pytest.mark.prove

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
SMALL = ["--steps", "1", "--play.num-prompts", "2", "--eval-tasks", "4", "--cold-start.imitation-gate", "0.01"]


def palaestra(python: Path, folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit status of a command and all that it said, on one line."""
    done = subprocess.run(
        [python, "-m", "palaestra", *arguments],
        cwd=folder,
        env=environment(folder) | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    "extra", ["", *(name for name in EXTRAS if name not in ("deepspeed", "dev", "docs", "openai", "test", "vllm"))]
)
def test_every_command_works_or_names_the_extra_that_it_needs(extra: str, wheel: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv", wheel, [extra] if extra else [])
    answers_as_it_should(python, tmp_path, extra)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the other tests are run by such a Python already")
def test_a_bare_installation_works_with_python_3_13(wheel: Path, tmp_path: Path) -> None:
    found = [shutil.which("python3.13"), *Path.home().glob(".pyenv/versions/3.13.*/bin/python3.13")]
    for python in filter(None, found):  # Version managers put names on the path that only print an error.
        if subprocess.run([python, "-m", "venv", tmp_path / "venv"], capture_output=True, check=False).returncode == 0:
            break
    else:
        pytest.skip("this machine has no Python 3.13")
    python = tmp_path / "venv" / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", wheel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"pip reaches no package index: {done.stderr.strip()[-200:]}")
    answers_as_it_should(python, tmp_path, "")


def answers_as_it_should(python: Path, folder: Path, extra: str) -> None:
    """List, check, doctor and train of an installation with one extra at most."""
    lacks_code = "" if extra == "code" else "which is not installed: pip install 'palaestra[code]'"
    status, said = palaestra(python, folder, "list")
    assert (status, "palaestra/TwoHop-v0" in said) == (0, True)
    status, said = palaestra(python, folder, "doctor")
    trains = extra in ("train", "lora", "dense")  # peft brings all that training needs, and so do embedding models.
    assert (status, "extra train: play and train models" in said) == (0 if trains else 1, True)
    assert f"ok extra {extra}:" in said or not extra
    status, said = palaestra(python, folder, "check", "calculator", "human-eval" if lacks_code else "two-hop")
    assert (status, lacks_code in said) == (2 if lacks_code else 0, True)
    if trains and extra != "train":
        return
    if extra != "train":
        status, said = palaestra(python, folder, "train", "two-hop", *SMALL)
        assert (status, "pip install 'palaestra[train]'" in said) == (2, True)
        return
    status, said = palaestra(python, folder, "train", "two-hop", *SMALL, "--run", "run")
    assert (status, (folder / "run" / "model").is_dir()) == (0, True), said
    status, said = palaestra(python, folder, "check", "--all")
    assert (status, "FAIL" in said, "skip not installed palaestra/HumanEval-v0 needs" in said) == (0, False, True)
    lacking = ("HumanEval", "LongQA", "MiniWoB", "Reasoning", "Research", "SearchQA", "WebNav", "WebShop")
    names = ", ".join(f"palaestra/{name}-v0" for name in lacking)
    assert f"not checked, for they are not installed: {names}" in said
