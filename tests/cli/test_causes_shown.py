"""`eval`, `collect`, `curate` and `train` say why episodes failed, and their figures do; no text harms a terminal."""

import json
import sys

import commands
import families
import pytest
from commands import words

from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.envs.harness import machine
from palaestra.record import read
from palaestra.trainers.view.pages.episode_view import content
from palaestra.trainers.view.report import transcript

MODULE = """
import json
import urllib.error
import urllib.request

import palaestra
from palaestra.envs import Harness, Task


class Fails(Harness):
    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(1000)}.", answer="yes")

    def run(self, task, model):
        number = int(task.prompt.split()[1].rstrip("."))
        if number % 3 == 0:
            raise ConnectionError(f"{model.base_url} is gone\\x1b[2J" + "y " * 10**5 + "the end")
        body = json.dumps({"messages": [{"role": "user", "content": task.prompt}]}).encode()
        try:
            with urllib.request.urlopen(f"{model.base_url}/chat/completions", body) as reply:
                said = json.load(reply)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            error.close()
            raise
        if number % 3 == 1:
            raise KeyError("\\x1b[31mcolor")
        return said or ""

    def reward(self, attempt):
        return float(len(attempt.answer or "") % 2)


def demonstrate(messages, rng, tool_rate=1.0):
    return "yes"


palaestra.register("test/Fails-v0", "a_failing_harness:Fails", demonstrator="a_failing_harness:demonstrate")
"""
ENV = "a_failing_harness:test/Fails-v0"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in a folder that holds the module of the harness; its status, and all that it said as one text."""
    (tmp_path / "a_failing_harness.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "a_failing_harness", raising=False)

    def run(*arguments):
        status, out, err = commands.run(capsys, *arguments)
        assert "\x1b" not in out + err
        return status, words(f"{out} {err}")

    return run


def assert_causes(causes, said, count=1):
    """Both causes stand in the figures, and they stand in what a command said, `count` times."""
    ((gone, broken),) = causes["broken"].items()
    ((error, raised),) = causes["raised"].items()
    assert "slot" in gone and "ConnectionError: http://127.0.0.1:" in gone and len(gone) <= 300
    assert error.startswith("KeyError: ") and error.endswith("(a_failing_harness.py, line 26)")
    assert said.count(f"{broken} episodes are BROKEN, and count in no figure: {broken} test/Fails-v0 slot") == count
    assert said.count(f"{raised} episodes ended because their harness raised an error: {raised} KeyError: ") == count
    assert "\\x1b[31mcolor" in said and len(said) < 6000
    return broken, raised


def test_an_evaluation_says_why_episodes_failed(run, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(machine, "_warned", set())
    status, said = run("eval", ENV, "--tasks", 24, "--json", "figures.json", "--save", "played.jsonl")
    assert status == 0, said
    figures = json.loads((tmp_path / "figures.json").read_text())
    broken, raised = assert_causes(figures["causes"], said)
    assert (broken, raised) == (figures["broken"], figures["endings"]["turn_limit"])
    assert caplog.text.count("its harness raised KeyError") == 1, "of those that are alike, the first is logged"
    assert "\x1b" not in caplog.text
    records = [*read(tmp_path / "played.jsonl")]
    assert sum(bool(record.episode.attempt.raised) for record in records) == raised
    failed = next(record for record in records if record.episode.attempt.raised)
    assert content(failed)["fault"] == failed.episode.attempt.raised
    assert "   raised  KeyError: " in transcript(failed.episode)
    assert max(len(record.episode.fault) for record in records) < 3000
    assert run("replay", "played.jsonl")[0] == 0


@pytest.mark.parametrize("command", ["collect", "curate"])
def test_what_is_played_into_a_file_says_why_episodes_failed(run, tmp_path, command):
    out = {"collect": "kept.jsonl", "curate": "kept.json"}[command]
    samples = ["--samples", 2] if command == "curate" else []
    _, said = run(command, ENV, "--tasks", 24, "--out", out, "--json", "figures.json", *samples)
    broken, _ = assert_causes(json.loads((tmp_path / "figures.json").read_text())["causes"], said)
    assert f"the same command tries the {broken} BROKEN again" in said


def test_a_run_says_why_episodes_failed_in_its_steps_and_in_its_measurements(run, tmp_path):
    tokenizer = families.TOKENIZERS["tiny"]
    made = tiny_model(len(tokenizer), layers=1, seed=7)
    made.generation_config.eos_token_id = list(range(20, 250, 6))
    export(made, tokenizer, tmp_path / "model")
    options = "--steps 2 --play.num-prompts 6 --play.num-generations 2 --play.max-turn-tokens 8 --eval-tasks 12"
    options += " --play.max-episode-tokens 256 --play.max-broken-share 0.9 --device cpu --model model --run run"
    status, said = run("train", ENV, *options.split())
    assert status == 0, said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    broken, _ = assert_causes(summary["causes"], said)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    parts = [*summary["before"].values(), *summary["after"].values()]
    in_steps = sum(step["episodes/broken"] for step in steps)
    assert 0 < in_steps < broken == in_steps + sum(part["broken"] for part in parts)
    assert_causes(summary["causes"], run("train", "--resume", "run")[1])
    assert_causes(summary["causes"], run("audit", "run")[1])
    status, said = run("train", ENV, *options.replace("0.9", "0.1").replace("--run run", "--run other").split())
    assert status == 2
    assert "more than max_broken_share=0.1" in said and "ConnectionError: http://127.0.0.1:" in said


def test_what_a_harness_raised_stands_by_its_reward_in_play(run, tmp_path, monkeypatch):
    (tmp_path / "turns.txt").write_text("yes\n/reward\n")
    raised = []
    for seed in range(8):
        with (tmp_path / "turns.txt").open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            shown = run("play", ENV, "--seed", str(seed))[1]
        raised += ["raised KeyError:" in shown.partition("computed from")[2]] if "turn_limit" in shown else []
    assert raised and all(raised)
