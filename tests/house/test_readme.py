"""What the README shows is what runs: its Python and its shell examples, word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [text.strip() for language, text in BLOCKS if language == "sh"]


def run(arguments, folder):
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_environment_example_is_checked_green(tmp_path):
    (tmp_path / "multiplication.py").write_text(PYTHON[0], encoding="utf-8")
    (command,) = (text for text in SHELL if "check" in text)
    assert "all passed" in run(command.split(), tmp_path)


def test_the_environment_example_is_short():
    body = PYTHON[0].split("class ")[1]
    assert len([line for line in body.splitlines() if line.strip()]) <= 14


def test_the_stepping_example_ends_in_an_answer(tmp_path):
    (tmp_path / "step.py").write_text(PYTHON[1], encoding="utf-8")
    printed = run([sys.executable, "step.py"], tmp_path)
    assert "Deka" in printed
    assert "answered" in printed


def test_every_example_is_covered():
    assert len(PYTHON) == 2
    assert [text.split()[1] for text in SHELL] == ["check", "train"]


@pytest.mark.prove
def test_the_training_example_learns(tmp_path):
    (command,) = (text for text in SHELL if "train" in text)
    run(command.split(), tmp_path)
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert (summary.parent / "model" / "model.safetensors").exists()
