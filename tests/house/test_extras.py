"""The wheel with each extra alone, away from the repository: what is not installed is named, never called failed."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import environment
from sources import ROOT
from wheels import bare_python, packages_of

pytestmark = pytest.mark.prove

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
SMALL = ["--steps", "1", "--play.num-prompts", "2", "--eval-tasks", "4", "--cold-start.demonstrations", "200"]
SMALL += [f"--cold-start.{name}" for name in ("imitation-gate=0.01", "first-gate=5", "imitation-decay=5")]


COMMANDS = """
import json, subprocess, sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from palaestra.cli import main
for command in json.loads(sys.argv[1]):
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = main(command)
    print(json.dumps([status, printed.getvalue()]))
"""


def palaestra(python: Path, folder: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """Exit status of each command and all that it said, on one line. One process runs them: its start takes longest."""
    done = subprocess.run(
        [python, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder,
        env=environment(folder) | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert not any("Traceback" in said for _, said in answers)
    return [(status, " ".join(said.split())) for status, said in answers]


@pytest.mark.parametrize(
    "extra", ["", *(name for name in EXTRAS if name not in ("deepspeed", "dev", "docs", "openai", "test", "vllm"))]
)
def test_every_command_works_or_names_the_extra_that_it_needs(extra: str, installed: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv", [extra] if extra else [])
    for part in installed.iterdir():
        (packages_of(python) / part.name).symlink_to(part)
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
    trains = extra in ("train", "lora", "dense")  # peft brings all that training needs, and so do embedding models.
    check = ["check", "calculator", "human-eval" if lacks_code else "two-hop"]
    asked = [["list"], ["doctor"], check, *([] if trains else [["train", "two-hop", *SMALL]])]
    listed, looked, checked, *trained = palaestra(python, folder, *asked)
    assert (listed[0], "palaestra/TwoHop-v0" in listed[1]) == (0, True)
    assert (looked[0], "extra train: play and train models" in looked[1]) == (0 if trains else 1, True)
    assert f"ok extra {extra}:" in looked[1] or not extra
    assert (checked[0], lacks_code in checked[1]) == (2 if lacks_code else 0, True)
    assert all((status, "pip install 'palaestra[train]'" in said) == (2, True) for status, said in trained)
    if extra != "train":
        return
    (status, said), (every, all_said) = palaestra(
        python, folder, ["train", "two-hop", *SMALL, "--run", "run"], ["check", "--all"]
    )
    assert (status, (folder / "run" / "model").is_dir()) == (0, True), said
    assert (every, "FAIL" in all_said, "skip not installed palaestra/HumanEval-v0 needs" in all_said) == (
        0,
        False,
        True,
    )
    lacking = ("HumanEval", "LongQA", "MiniWoB", "Reasoning", "Research", "SearchQA", "WebNav", "WebShop")
    names = ", ".join(f"palaestra/{name}-v0" for name in lacking)
    assert f"not checked, for they are not installed: {names}" in all_said
