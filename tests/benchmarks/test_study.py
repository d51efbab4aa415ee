"""The study of the papers' claims, in miniature: every arm runs, and what it found stands on the page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = Path(__file__).resolve().parents[2] / "benchmarks" / "study"


@pytest.mark.prove
@pytest.mark.parametrize(("part", "rows"), [("algorithms", 40), ("reagent", 6)])
def test_every_arm_of_every_comparison_runs_and_is_reported(tmp_path, part, rows):
    command = [sys.executable, str(STUDY), part, "--miniature", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "every run is there" in done.stdout
    page = (tmp_path / "study.md").read_text()
    for path in (tmp_path / "results").glob("*.jsonl"):
        assert f"(`{path.stem}`)" in page
    assert page.count("\n| ") > rows
    assert next((tmp_path / "pictures").glob("study*.png")).stat().st_size > 1000
