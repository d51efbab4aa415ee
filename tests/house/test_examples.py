"""Every example runs as it stands; what only a GPU can run is understood, to the last option."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOW = {"train_in_python.py"}
PATHS = {
    "demystify": (["qwen3-4b"], ["qwen2.5-7b"]),
    "prs_vspo": (["qwen2.5-7b", "short"], ["qwen3-4b", "long"]),
    "reagent": (["data"], ["judge"], ["serve"], ["agent", "reagent-u"], ["agent", "reagent-r"]),
}
IN_PART = {"data": {"pool", "collect", "judge"}, "judge": {"sft", "train", "eval"}, "serve": {"serve"}}
"""Commands that a part of a script must give; others train and measure."""


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


@pytest.fixture
def dry_run(monkeypatch):
    """The program behind `--dry`, on a machine without a server, a model or docker."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent / "scripts"))
    module = import_module("dry_run")
    for name in ("TEACHER_URL", "ENGINE_URL", "SEARCH_URL", "JUDGE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setattr(module, "known", lambda model: True)
    monkeypatch.setattr(module, "answers", lambda url: True)
    monkeypatch.setattr(module.shutil, "which", lambda program: program)
    return module


@pytest.mark.parametrize(("path", "words"), [(path, words) for path, every in PATHS.items() for words in every])
def test_a_dry_run_looks_at_every_command_of_a_full_scale_path(path, words, tmp_path, dry_run):
    found = dry_run.looked_at(EXAMPLES / path / "full_scale.sh", words, tmp_path)
    assert IN_PART.get(words[0], {"train", "eval"}) <= {command[0] for command, _ in found}
    problems = [problem for _, lacks in found for problem in lacks]
    assert all(problem.startswith(f"no file {tmp_path}") for problem in problems)
    assert bool(problems) == (words not in (["judge"], ["serve"], ["qwen3-4b", "long"]))  # These take no file.


def test_dry_as_the_first_word_starts_nothing(tmp_path):
    """As a user gives it, in a folder without data and on a machine without servers."""
    command = ["sh", str(EXAMPLES / "reagent" / "full_scale.sh"), "--dry", "serve"]
    environment = {**os.environ, "PYTHON": sys.executable, "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ok palaestra serve rrm" in done.stdout
    assert "Needs: 8 cards" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_what_is_wrong_or_missing(dry_run, tmp_path, monkeypatch):
    script, data = tmp_path / "full_scale.sh", tmp_path / "data"
    data.mkdir()
    (data / "there.jsonl").touch()
    eval_it = 'palaestra eval code-math --model Some/Model --env-options tasks="$DATA/'
    script.write_text(
        f'{eval_it}there.jsonl"\n{eval_it}absent.jsonl"\n'
        'cat "$DATA/there.jsonl" "$DATA/joined.jsonl" > "$RUN/both.jsonl"\n'
        'palaestra eval code-math --model Some/Model --env-options tasks="$RUN/both.jsonl"\n'
        "palaestra train two-hop --model Some/Model --recipe vspo --steppes 3\n"
        "palaestra judge a.jsonl --teacher $OTHER_URL --teacher-model m --out b.jsonl\n"
        "palaestra eval two-hop --model Some/Model --critic $JUDGE_URL\n"
    )
    monkeypatch.setattr(dry_run, "answers", lambda url: "127" not in url)
    (_, right), (_, file), (_, joined), (_, flag), (_, unset), (_, dead) = dry_run.looked_at(script, [], data)
    assert right == []
    assert file == [f"no file {data}/absent.jsonl"]
    assert joined == [f"no file {data}/joined.jsonl"]
    assert "steppes" in flag[0]
    assert "OTHER_URL is not set" in unset
    assert dead == ["nothing answers at http://127.0.0.1:1"]
    monkeypatch.setattr(dry_run, "known", lambda model: False)
    assert "no model Some/Model" in dry_run.looked_at(script, [], data)[0][1][0]
