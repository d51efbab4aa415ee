"""Every example runs as it stands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOW = {"train_in_python.py"}


def run(name, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=pytest.mark.prove if path.name in SLOW else ())
        for path in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_it_runs_and_says_something(name, tmp_path):
    assert run(name, tmp_path).strip()
