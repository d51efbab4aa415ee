"""The command line as a newcomer meets it: help with defaults, mistakes that name what was meant, results on disk."""

import json
import os
import re
import subprocess
import sys

import families
import pytest

import palaestra
from palaestra.agents.local_model import load, serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import COMMANDS, main
from palaestra.trainers.cold_start import Pupil
from palaestra.trainers.progress import Progress

SMALL = [
    "--steps",
    "2",
    "--num-prompts",
    "2",
    "--num-generations",
    "2",
    "--slots",
    "4",
    "--max-turn-tokens",
    "8",
    "--eval-tasks",
    "4",
    "--device",
    "cpu",
]


def run(capsys, *arguments):
    """Exit status, standard output and standard error of a command."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def words(text):
    """The text without the frames and line breaks that fit it to a terminal."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize("asked", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(capsys, asked):
    status, out, _ = run(capsys, *asked)
    assert status == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list", "Show the registered environments."),
        ("check", "Environments to check"),
        ("train", "--learning-rate FLOAT AdamW's. (default: 0.001)"),
        ("eval", "--tasks INT Held-out tasks. (default: 256)"),
        ("demo", "--num-generations INT Episodes of each task: one group. (default: 8)"),
    ],
)
def test_help_of_a_command_shows_its_defaults(capsys, command, expected):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert expected in words(out)
    assert "usage: palaestra " + command in words(out)


def test_help_of_train_shows_the_defaults_of_the_model_that_is_asked_for(capsys):
    for arguments in (("--model", "some/folder"), ("--model=some/folder",)):
        _, out, _ = run(capsys, "train", *arguments, "--help")
        assert "(default: 1e-06)" in words(out)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["evaluate"], "did you mean 'eval'"),
        (["trian", "two-hop"], "did you mean 'train'"),
        (["train", "two-hop", "--learning-rat", "1"], "--learning-rate"),
        (["eval", "two-hop", "--task", "8"], "--tasks"),
        (["eval", "palaestra/TwoHopp-v0"], "did you mean palaestra/TwoHop-v0"),
        (["train", "two-hopp"], "palaestra/TwoHop-v0"),
        (["check", "aritmetic"], "palaestra/Arithmetic-v0"),
        (["train", "two-hop", "--recipe", "grpo-tc"], "did you mean 'grpo-tcr'"),
    ],
    ids=" ".join,
)
def test_a_mistake_names_what_was_meant_and_exits_with_2(capsys, arguments, meant):
    status, out, err = run(capsys, *arguments)
    assert status == 2
    assert meant in words(err + out)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "two-hop", "--tasks", "0"],
        ["eval", "two-hop", "--temperature", "-1"],
        ["eval", "two-hop", "--temperature", "nan"],
        ["eval", "two-hop", "--max-turn-tokens", "0"],
        ["eval", "two-hop", "--seed", "-1"],
        ["eval", "two-hop", "--model", "/nowhere/at/all"],
        ["eval", "nobodys_module:x/Y-v0"],
        ["eval", "CartPole-v1"],
        ["train", "two-hop", "--steps", "0"],
        ["train", "two-hop", "--epsilon", "2"],
        ["train", "two-hop", "--eval-tasks", "0"],
        ["train", "two-hop", "--seed", "-1"],
        ["train", "two-hop", "--device", "gpu"],
        ["train", "two-hop", "--model", "/nowhere/at/all"],
        ["train"],
        ["demo", "two-hop", "--model", "/some/where"],
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_in_a_sentence(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert len(err) > 20
    assert "Traceback" not in err


def test_the_environments_are_listed_with_their_tools(capsys):
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert all(env_id in out for env_id in palaestra.registered() if env_id.startswith("palaestra/"))
    assert "search" in out


@pytest.mark.parametrize(
    "name", ["two-hop", "TwoHop", "two_hop", "palaestra/TwoHop-v0", "palaestra:palaestra/TwoHop-v0"]
)
def test_the_demonstrator_is_measured_under_any_spelling_of_its_id(capsys, name, tmp_path):
    figures = tmp_path / "figures.json"
    status, out, _ = run(capsys, "eval", name, "--tasks", "8", "--json", str(figures))
    assert status == 0
    assert "demonstrator in palaestra/TwoHop-v0" in words(out)
    found = json.loads(figures.read_text())
    assert (found["tasks"], found["success"], found["endings"]["answered"]) == (8, 1.0, 8)


def test_an_environment_of_ones_own_is_found_in_the_current_folder(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_own_world.py").write_text(
        "import palaestra\nfrom palaestra.envs.suite.calculator import Calculator, demonstrate\n"
        "palaestra.register('me/Mine-v0', 'my_own_world:Calculator', demonstrator='my_own_world:demonstrate')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    try:
        status, out, _ = run(capsys, "eval", "my_own_world:me/Mine-v0", "--tasks", "4")
    finally:
        __import__("gymnasium").registry.pop("me/Mine-v0", None)
    assert status == 0
    assert "me/Mine-v0" in out


@pytest.fixture
def newborn(monkeypatch):
    """Instead of a pupil that is raised, one that knows nothing: what is tested is what comes after."""
    tokenizer = families.TOKENIZERS["tiny"]

    def raise_tiny(config, cold=None):
        yield Progress("imitation", 1, 1, {"loss": 1.0})
        return Pupil(serve(tiny_model(len(tokenizer), layers=1), tokenizer, slots=config.slots), 1, 1, ())

    monkeypatch.setattr("palaestra.trainers.lesson.raise_tiny", raise_tiny)


def test_a_run_leaves_its_config_its_steps_its_figures_and_its_model(capsys, newborn, tmp_path):
    folder = tmp_path / "run"
    status, out, err = run(capsys, "train", "two-hop", *SMALL, "--run", str(folder))
    assert status == 0, err
    assert str(folder) in out
    config = json.loads((folder / "config.json").read_text())
    assert (config["env_id"], config["steps"], config["algorithm"]["name"]) == ("palaestra/TwoHop-v0", 2, "grpo-tcr")
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert {"reward", "entropy", "rewards/success/mean", "tools/call_frequency"} <= set(steps[0])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["before"]["sampled"]["tasks"] == summary["after"]["greedy"]["tasks"] == 4
    assert len(summary["curve"]) == 2
    assert load(str(folder / "model"), slots=2, device="cpu").agent.chat is not None

    status, _, err = run(capsys, "train", "two-hop", *SMALL, "--run", str(folder))
    assert status == 2
    assert "already holds a run" in err
    again = tmp_path / "again"
    status, _, err = run(capsys, "train", "two-hop", *SMALL, "--run", str(again), "--model", str(folder / "model"))
    assert status == 0, err
    status, out, _ = run(capsys, "eval", "two-hop", "--tasks", "4", "--model", str(again / "model"), *SMALL[8:10])
    assert status == 0


def test_a_model_that_is_not_there_leaves_no_run_behind(capsys, tmp_path):
    """So that the corrected command runs."""
    folder = tmp_path / "run"
    status, _, _ = run(capsys, "train", "two-hop", *SMALL, "--run", str(folder), "--model", str(tmp_path / "typo"))
    assert status == 2
    assert not (folder / "metrics.jsonl").exists()


def test_ctrl_c_is_no_traceback(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("palaestra.cli.eval.run", interrupted)
    status, _, err = run(capsys, "eval", "two-hop")
    assert status == 130
    assert "interrupted" in err


_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{library}":
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent())
from palaestra.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(library, folder, *arguments):
    """Run a command in a fresh interpreter in which a library is not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(library=library), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("torch", ["train", "two-hop"], "train"),
        ("transformers", ["train", "two-hop"], "train"),
        ("torch", ["eval", "two-hop", "--model", "some/folder"], "train"),
        ("torch", ["demo"], "train"),
        ("matplotlib", ["demo"], "plot"),
    ],
)
def test_a_missing_extra_names_its_install_command(library, arguments, extra, tmp_path):
    """At once, and before a run's folder is made."""
    done = without(library, tmp_path, *arguments)
    assert not list(tmp_path.iterdir())
    assert done.returncode == 2, done.stderr
    assert f"pip install 'palaestra[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_needs_no_extra_runs_without_them(tmp_path):
    for arguments in (["eval", "two-hop", "--tasks", "4"], ["train", "--help"], ["list"]):
        done = without("torch", tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
