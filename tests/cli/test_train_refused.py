"""What `palaestra train` and `demo` refuse is refused before minutes are spent, and leaves nothing in the way."""

import json
import sys

import gymnasium
import pytest

import palaestra
from palaestra import UsageError
from palaestra.cli import main
from palaestra.trainers import grpo
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.setup import cold_start, open_learner


@pytest.fixture(autouse=True)
def nobody_is_raised(monkeypatch):
    """Raising the tiny agent takes minutes: whoever gets that far has refused too late."""

    def cold_started(config, model, on_progress):
        raise AssertionError("the tiny agent is raised")

    monkeypatch.setattr(open_learner, "cold_started", cold_started)


def refused(capsys, tmp_path, *arguments):
    """What is said; nothing is left behind, and there is nothing to go on with."""
    before = set(tmp_path.rglob("*"))
    assert main([*arguments, "--run", str(tmp_path / "run")]) == 2
    assert set(tmp_path.rglob("*")) == before
    said = capsys.readouterr().err
    assert "--resume" not in said
    return said


def problems(tmp_path, **splits):
    """A file with so many problems of each split."""
    rows = [
        {"prompt": f"What is {n} * 3 ({split})?", "answer": str(3 * n), "split": split}
        for split, count in splits.items()
        for n in range(count)
    ]
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return f"tasks={path}"


@pytest.mark.parametrize("command", ["train", "demo"])
def test_too_few_tasks_for_the_tiny_agent(capsys, tmp_path, command):
    options = problems(tmp_path, train=9, eval=4)
    said = refused(capsys, tmp_path, command, "calculator", "--env-options", options)
    assert "not possible with 9 training tasks" in said


def test_a_file_without_tasks_to_train_on(capsys, tmp_path):
    said = refused(capsys, tmp_path, "train", "calculator", "--env-options", problems(tmp_path, eval=30))
    assert "no row is for 'train'" in said


def test_an_environment_without_tasks_to_measure_on(capsys, monkeypatch, tmp_path):
    (tmp_path / "half_an_exam.py").write_text(
        "import palaestra\n"
        "from palaestra.envs import Task\n"
        "from palaestra.envs.suite.calculator import Calculator, demonstrate\n"
        "class Exam(Calculator):\n"
        "    def task_set(self, split):\n"
        "        return [Task(f'What is {n} * 2?', str(2 * n)) for n in range(20)] if split == 'train' else []\n"
        "palaestra.register('me/HalfAnExam-v0', 'half_an_exam:Exam', demonstrator='half_an_exam:demonstrate')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        assert "task_set('eval') is empty" in refused(capsys, tmp_path, "train", "half_an_exam:me/HalfAnExam-v0")
    finally:
        gymnasium.registry.pop("me/HalfAnExam-v0", None)


def test_an_option_that_the_environment_does_not_take(capsys, tmp_path):
    assert "tolerence" in refused(capsys, tmp_path, "train", "calculator", "--env-options", "tolerence=1")


@pytest.mark.parametrize("command", ["train", "demo"])
@pytest.mark.parametrize(
    ("game", "meant"), [("solver-critic", "the seats solver_0, critic_0"), ("two-hop", "leave train_seats empty")]
)
def test_a_seat_that_does_not_exist(capsys, tmp_path, command, game, meant):
    said = refused(capsys, tmp_path, command, game, "--env.train-seats", "solver_9")
    assert "train_seats names 'solver_9'" in said
    assert meant in said


def test_a_seat_that_does_not_exist_is_refused_from_python_too(monkeypatch):
    monkeypatch.undo()
    config = tiny_config("palaestra/solver_critic-v0", train_seats=("solver_9",))
    with pytest.raises(UsageError, match="solver_9"):
        cold_start.cold_started(config)


def test_a_mistake_that_shows_only_while_the_agent_is_raised_leaves_the_name_free(capsys, monkeypatch, tmp_path):
    def cold_started(config, model, on_progress):
        raise UsageError("no demonstration is an episode")

    monkeypatch.setattr(open_learner, "cold_started", cold_started)
    assert "no demonstration" in refused(capsys, tmp_path, "train", "two-hop")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert main(["train", "two-hop", "--run", str(tmp_path / "run")]) == 2
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_run_that_has_made_something_is_kept_and_told_how_to_go_on(capsys, monkeypatch, tmp_path):
    def opened(run, *_):
        run.add_before({})
        raise UsageError("these episodes cannot be written")

    monkeypatch.setattr(grpo, "open_learner", opened)
    assert main(["train", "two-hop", "--run", str(tmp_path / "run")]) == 2
    assert f"palaestra train --resume {tmp_path / 'run'}" in capsys.readouterr().err
    assert (tmp_path / "run" / "config.json").is_file()


def test_who_goes_on_with_a_run_keeps_its_folder(capsys, monkeypatch, tmp_path):
    def cold_started(config, model, on_progress):
        raise palaestra.TrainingHalted("no weights pass")

    with Run(tmp_path / "run", tiny_config("palaestra/TwoHop-v0")):
        pass
    monkeypatch.setattr(open_learner, "cold_started", cold_started)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "no step is saved yet: palaestra train --resume" in capsys.readouterr().err
    assert (tmp_path / "run" / "config.json").is_file()


def test_the_gate_and_the_imitation_steps_that_are_asked_for_are_those_that_raise(monkeypatch):
    monkeypatch.undo()
    asked = []

    def begun(*_, config, **__):
        asked.append(config)

    monkeypatch.setattr(cold_start, "cold_start", begun)
    config = tiny_config("palaestra/TwoHop-v0", imitation_gate=0.5, imitation_steps=100)
    cold_start.cold_started(config)
    assert [(c.imitation_gate, c.imitation_steps) for c in asked] == [(0.5, 100)]
