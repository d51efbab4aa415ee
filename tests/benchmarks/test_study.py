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
    from later_claims import last_answers
    from report import round_tables
    from results import Results

    results = Results(STUDY.parent / "results" / "study")
    page, appendix = ((ROOT / "docs" / name).read_text("utf-8") for name in ("study.md", "study_tables.md"))
    assert claims.table(last_answers(results)) in page
    assert all(text in appendix for text in round_tables(results).values())


def test_the_page_has_each_claim_once_as_the_last_round_answered_it(claims, monkeypatch, tmp_path):
    import later_claims
    from claims import Answer, Claim
    from results import Results

    def of(*asked):
        return [Answer(Claim(text, "c", "arm", "base", replaces=replaces), v, p) for text, replaces, v, p in asked]

    up, down = [1.0, 1.1], [-1.0, -1.1]
    first = of(("small", (), up, 0.5), ("same", (), up, 0.5), ("old", (), up, 0.01), ("no", (), down, 0.01))
    second = of(("same", (), up, 0.01), ("new", ("old",), [0.0, 0.0001], 0.9))
    third = of(("third", (), down, None))
    monkeypatch.setattr(later_claims, "first_round", lambda _: (first, 4))
    later = {later_claims.SECOND_CLAIMS: second, later_claims.THIRD_CLAIMS: third}
    monkeypatch.setattr(later_claims, "later_round", lambda _, asked: later[asked])
    found = [(answer.claim.text, answer.verdict) for answer in later_claims.last_answers(Results(tmp_path))]
    assert found == [("same", "for"), ("no", "against"), ("new", "open"), ("third", "open"), ("small", "open")]
    texts = {claim.text for claim in claims.CLAIMS}
    assert texts.issuperset(text for claim in later_claims.SECOND_CLAIMS for text in claim.replaces)


def test_an_arm_is_judged_at_the_rate_that_is_better_in_all_other_seeds(claims, tmp_path):
    from later_claims import tuned
    from results import Results

    results = Results(tmp_path)
    for rate, successes in {"1e-03": (0.9, 0.2, 0.2), "2e-03": (0.1, 0.3, 0.3)}.items():
        for seed, success in enumerate(successes):
            curve = [{"success": 0.0}, {"success": success}]
            results.add("graded", {"arm": f"value, lr {rate}", "seed": seed, "curve": curve})
    chosen = {seed: line["curve"][1]["success"] for seed, line in tuned(results, "graded", "value").items()}
    assert chosen == {0: 0.1, 1: 0.2, 2: 0.2}  # Seed 0 is better at the first rate, and the others are not.


def test_the_sign_flip_test_is_exact_and_never_certain(claims):
    from later_claims import sign_flip_p

    assert sign_flip_p([1.0] * 5) == 2 / 2**5
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, 1.0, -1.0]) == 6 / 8
    assert 0 < sign_flip_p([0.1] * 30) < 0.001


def test_a_claim_of_a_later_round_is_open_until_all_its_seeds_are_there(claims, tmp_path):
    from later_claims import SECOND_CLAIMS, later_round
    from parts import COMPARISONS
    from results import Results

    results, seeds = Results(tmp_path), COMPARISONS["graded"].seeds

    def row(count):
        for seed in range(count):
            for arm, success in (("value", 0.8), ("random", 0.5)):
                for rate in ("1e-03", "2e-03"):
                    curve = [{"success": 0.0}, {"success": success + seed / 1000}]
                    results.add("graded", {"arm": f"{arm}, lr {rate}", "seed": seed, "curve": curve})
        answers = later_round(results, SECOND_CLAIMS)
        return next(answer.row() for answer in answers if "than a random one" in answer.claim.text)

    assert "| open |" in row(seeds - 1)
    assert "| **for** |" in row(seeds)


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

    answers, contrasts = claims.first_round(Results(tmp_path))
    assert len(answers) == len(claims.CLAIMS) and contrasts == 0
    assert all("| not run |" in answer.row() for answer in answers)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("part", "rows", "only"),
    [
        ("algorithms", 40, ()),
        ("reagent", 6, ()),
        ("tree", 7, ()),
        # Its other comparisons are those of the first round at other rates.
        ("second", 20, ("graded", "starved", "process", "pass-at-8", "thinking")),
        ("third", 8, ()),
    ],
)
def test_every_arm_of_every_comparison_runs_and_is_reported(tmp_path, part, rows, only):
    command = [sys.executable, str(STUDY), part, "--miniature", str(tmp_path), *(["--only", *only] if only else [])]
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
