"""Every example runs as it stands; what only a GPU can run is understood, to the last option."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tyro

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOW = {"train_in_python.py"}
PATHS = {
    "demystify": (["qwen3-4b"], ["qwen2.5-7b"]),
    "prs_vspo": (["qwen2.5-7b", "short"], ["qwen3-4b", "long"]),
    "reagent": (["data"], ["judge"], ["serve"], ["agent", "reagent-u"], ["agent", "reagent-r"]),
}
IN_PART = {"data": {"pool", "collect", "judge"}, "judge": {"sft", "train", "eval"}, "serve": {"serve"}}
"""Commands that a part of a script must give; others train and measure."""
RECORDER = """#!/bin/sh
printf '%s\\037' "$@" >> "$SAID"
echo >> "$SAID"
while [ $# -gt 1 ]; do
    case $1 in --out) : >> "$2" ;; esac
    shift
done
"""
"""A word ends in the character 31, a command in a line; what is written next is there for the script to read."""


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


@pytest.mark.parametrize(("path", "words"), [(path, words) for path, every in PATHS.items() for words in every])
def test_every_command_of_a_full_scale_path_is_understood(path, words, tmp_path, monkeypatch):
    said, script = tmp_path / "said.jsonl", EXAMPLES / path / "full_scale.sh"
    (tmp_path / "data").mkdir()
    for name in re.findall(r"\$DATA/([\w.-]+\.jsonl)", script.read_text()):
        (tmp_path / "data" / name).touch()
    recorder = tmp_path / "palaestra"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    urls = dict.fromkeys(("TEACHER_URL", "ENGINE_URL", "SEARCH_URL", "JUDGE_URL"), "http://127.0.0.1:1")
    environment = {**os.environ, **urls, "SAID": str(said), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(script), *words], cwd=tmp_path, env=environment, check=True, timeout=60)
    monkeypatch.chdir(tmp_path)  # Options look for the folders that the script has made.
    commands = [line.split("\x1f")[:-1] for line in said.read_text().split("\n")[:-1]]
    assert IN_PART.get(words[0], {"train", "eval"}) <= {name for name, *_ in commands}
    for name, *arguments in commands:
        understand(name, arguments)


def understand(name, arguments):
    """Read a command's options as it does itself; one that is unknown ends the program."""
    if name == "serve":
        name, arguments = f"serve_{arguments[0]}", arguments[1:]
    module = import_module(f"palaestra.cli.{name}")
    if name == "train":
        module.parse(arguments, "palaestra train")
    elif name == "sft":
        module.parse(arguments)
    else:
        options = {"serve_rrm": "ServeRRMOptions"}.get(name, f"{name.title()}Options")
        tyro.cli(getattr(module, options), args=arguments)
