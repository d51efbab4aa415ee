"""Every example runs as it stands; what only a GPU can run is understood, to the last option."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOW = {"train_in_python.py"}


def run(name, folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=pytest.mark.prove if path.name in SLOW else ())
        for path in sorted(EXAMPLES.glob("*.py"))
        if path.name != "grpo_by_hand.py"  # It has a test of its own.
    ],
)
def test_it_runs_and_says_something(name, tmp_path):
    assert run(name, tmp_path).strip()


@pytest.mark.prove
def test_grpo_by_hand_learns_what_train_learns(tmp_path):
    """With the same settings: a step's success is .9 at least in the last ten of 50, as it is of `train` (docs)."""
    curve = [float(value) for value in re.findall(r"success (\d\.\d\d)", run("grpo_by_hand.py", tmp_path))]
    assert len(curve) == 50
    assert curve[0] < 0.5
    assert sum(curve[-10:]) / 10 > 0.9


@pytest.mark.prove
@pytest.mark.parametrize(
    ("path", "measured"), [("demystify", ["two-hop", "calculator"]), ("prs_vspo", [None]), ("reagent", [None])]
)
def test_the_small_version_of_a_full_scale_path_goes_all_the_way(path, measured, tmp_path):
    run(f"{path}/small.py", tmp_path, "--quick", "--folder", str(tmp_path))
    for name in measured:
        found = json.loads((tmp_path / (f"avg-{name}.json" if name else "avg.json")).read_text())
        assert found["at_k"]["pass@8"]["value"] >= found["success"] > 0
