"""The study of the papers' claims, in miniature: every arm runs, and what it found stands on the page."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[2] / "benchmarks" / "study"
ROOT = STUDY.parents[1]


@pytest.fixture
def claims(monkeypatch):
    """The module of the claims, as the study imports it."""
    monkeypatch.syspath_prepend(str(STUDY))
    return importlib.import_module("claims")


def test_the_claims_on_the_page_are_those_of_the_committed_results(claims):
    from results import Results

    table = claims.claims_table(Results(STUDY.parent / "results" / "study"))
    assert table in (ROOT / "docs" / "study.md").read_text("utf-8")


def test_p_values_are_those_of_students_test_and_of_holms_correction(claims):
    # 2.776 standard errors are the 5 % bound with four degrees of freedom, 2.262 with nine.
    for count, bound in ((5, 2.7764), (10, 2.2622)):
        values = np.linspace(-1.0, 1.0, count)
        shift = bound * values.std(ddof=1) / count**0.5
        assert claims.student_p(values + shift) == pytest.approx(0.05, abs=1e-4)
    assert claims.student_p([0.1] * 5) == 0.0
    assert claims.holm([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.09, 0.09, 0.9])


def test_a_claim_without_runs_says_so(claims, tmp_path):
    from results import Results

    rows = [row for row in claims.claims_table(Results(tmp_path)).splitlines() if row.startswith("| ")][1:]
    assert len(rows) == len(claims.CLAIMS)
    assert all("| not run |" in row for row in rows)


@pytest.mark.prove
@pytest.mark.parametrize(("part", "rows"), [("algorithms", 40), ("reagent", 6), ("tree", 7)])
def test_every_arm_of_every_comparison_runs_and_is_reported(tmp_path, part, rows):
    command = [sys.executable, str(STUDY), part, "--miniature", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "every run is there" in done.stdout
    page = (tmp_path / "study_tables.md").read_text()
    for path in (tmp_path / "results").glob("*.jsonl"):
        assert f"(`{path.stem}`)" in page
    assert page.count("\n| ") > rows
    assert "| not run |" in (tmp_path / "study.md").read_text()  # One seed has no spread.
    assert next((tmp_path / "pictures").glob("study*.png")).stat().st_size > 1000
