"""`palaestra train` from its first signal to its last: what is safe, what is said, and what going on takes."""

import json
import os
import shutil
import signal

import families
import pytest
from commands import run_in_words as run
from fake_server import nobody

from palaestra.agents.local_model import load, serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.cli import main, results
from palaestra.trainers import grpo
from palaestra.trainers.evaluation import during_training as measuring
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.run.folder import Run
from palaestra.trainers.setup import open_learner
from palaestra.trainers.setup import open_run as opening
from palaestra.trainers.setup.cold_start import Pupil
from palaestra.trainers.validation import plain

OPTIONS = {
    "steps": 3,
    "play.num-prompts": 4,
    "play.num-generations": 4,
    "optimizer.num-mini-batches": 2,
    "optimizer.learning-rate": 1e-3,
    "play.slots": 16,
    "play.max-turn-tokens": 30,
    "play.max-episode-tokens": 256,
    "recipe.shaping.max-completion-length": 10,
    "save.checkpoint-every": 2,
    "eval-tasks": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a random agent."""
    return families.random_agent(tmp_path_factory.mktemp("model"))


def options(folder, **changes):
    given = OPTIONS | {name.replace("_", "-"): value for name, value in changes.items()} | {"run": folder}
    return [
        "train",
        "two-hop",
        "--play.ordered",
        *(str(part) for name, value in given.items() for part in (f"--{name}", value)),
    ]


def told(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "time" not in key} for line in lines]


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """The folder of a run that nothing happened to; it is read only."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    assert main(options(folder, model=model)) == 0
    return folder


@pytest.fixture
def stopped(finished, tmp_path):
    """The same run, killed after its second step."""
    folder = tmp_path / "stopped"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "model")
    shutil.rmtree(folder / "checkpoints" / "step-000003")
    (folder / "summary.json").unlink()
    return folder


def same_end(folder, finished):
    assert told(folder) == told(finished)
    for name in ("model/model.safetensors", "checkpoints/step-000003/training.safetensors"):
        assert (folder / name).read_bytes() == (finished / name).read_bytes()
    ends = [json.loads((one / "summary.json").read_text()) for one in (folder, finished)]
    for name in ("before", "after", "curve", "steps", "eval_tasks", "env_id", "model", "recipe"):
        assert ends[0][name] == ends[1][name]


def test_a_run_leaves_what_it_promises(capsys, finished, model):
    summary = json.loads((finished / "summary.json").read_text())
    assert (summary["steps"], summary["eval_tasks"], summary["model"]) == (3, 4, str(model))
    assert (summary["env_id"], summary["recipe"]) == ("palaestra/TwoHop-v0", "grpo-tcr")
    assert json.loads((finished / "config.json").read_text())["eval_tasks"] == 4
    assert sorted(os.listdir(finished / "checkpoints")) == ["step-000002", "step-000003"]
    assert sorted(os.listdir(finished / "episodes")) == [
        "eval-after.jsonl",
        "eval-before.jsonl",
        *(f"step-{step:06}.jsonl" for step in (1, 2, 3)),
    ]
    assert len((finished / "episodes" / "eval-before.jsonl").read_text().splitlines()) == 4
    assert {"reward", "entropy", "rewards/success/mean", "tools/call_frequency"} <= set(told(finished)[0])
    assert summary["before"]["sampled"]["tasks"] == summary["after"]["greedy"]["tasks"] == 4
    assert load(str(finished / "model"), slots=2, device="cpu").agent.chat is not None
    status, _, err = run(capsys, *options(finished, model=model))
    assert (status, "already holds a run" in err) == (2, True)


@pytest.mark.parametrize("form", ["folder alone", "with id", "with options"])
def test_a_killed_run_goes_on_from_its_folder(capsys, stopped, finished, form):
    more = {
        "folder alone": [],
        "with id": ["two-hop"],
        "with options": ["TwoHop", "--steps", 3, "--save.checkpoint-every", 1],
    }
    status, _, err = run(capsys, "train", *more[form], "--resume", stopped)
    assert status == 0, err
    assert "going on after step 2 of 3" in err
    same_end(stopped, finished)


def test_figures_from_before_the_first_step_are_taken_once(capsys, monkeypatch, stopped, finished):
    measured = []
    evaluate = measuring.evaluate_both
    monkeypatch.setattr(measuring, "evaluate_both", lambda *given: measured.append(1) or evaluate(*given))
    assert run(capsys, "train", "--resume", stopped)[0] == 0
    assert len(measured) == 1, "only the figures after the last step"
    same_end(stopped, finished)


def test_a_run_killed_before_its_first_checkpoint_begins_at_its_start(capsys, stopped, finished):
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "before.json").unlink()
    status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 0
    assert "going on" not in err
    same_end(stopped, finished)


def test_a_finished_run_is_left_as_it_is(capsys, finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != "lock"}
    status, out, err = run(capsys, "train", "--resume", finished)
    assert status == 0
    assert "is finished: 3 steps" in err
    assert "before" in out
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.name != "lock"}


def test_a_finished_run_grows(capsys, finished, tmp_path, model):
    shutil.copytree(finished, tmp_path / "grown")
    status, _, err = run(capsys, "train", "--resume", tmp_path / "grown", "--steps", 4)
    assert status == 0, err
    assert main(options(tmp_path / "at-once", model=model, steps=4)) == 0
    assert told(tmp_path / "grown") == told(tmp_path / "at-once")
    assert json.loads((tmp_path / "grown" / "summary.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--seed", "3"], "seed was 0 and is 3"),
        (["--recipe", "grpo-t"], "recipe.recipe_name was 'grpo-tcr' and is 'grpo-t'"),
        (["arithmetic"], "env.env_id was 'palaestra/TwoHop-v0' and is 'palaestra/Arithmetic-v0'"),
        (["--eval-tasks", "9"], "eval_tasks was 4 and is 9"),
        (["--steps", "2"], "steps was 3 and is 2; steps may grow"),
        (["--model", "tiny"], "model was"),
        (["--run", "elsewhere"], "leave out --run"),
        (["--stepps", "9"], "--steps"),
    ],
)
def test_a_request_that_would_spoil_a_run_is_refused(capsys, stopped, arguments, meant):
    before = told(stopped)
    status, out, err = run(capsys, "train", "--resume", stopped, *arguments)
    assert status == 2
    assert meant in err + out
    assert "Traceback" not in err
    assert told(stopped) == before


def test_what_is_no_run_is_refused(capsys, tmp_path, model):
    for folder in (tmp_path / "nowhere", tmp_path, model):
        status, _, err = run(capsys, "train", "--resume", folder)
        assert status == 2
        assert "no run" in err or "not the config of a run" in err
    assert os.listdir(tmp_path) == []


def test_a_demo_is_not_gone_on_with(capsys, stopped):
    status, _, err = run(capsys, "demo", "--resume", stopped)
    assert status == 2
    assert "palaestra train --resume" in err


def test_the_model_of_a_checkpoint_is_measured_like_any_other(capsys, finished, tmp_path):
    model, figures = finished / "checkpoints" / "step-000002" / "model", tmp_path / "figures.json"
    asked = ("--tasks", 4, "--max-turn-tokens", 8, "--device", "cpu", "--json", figures)
    status, _, err = run(capsys, "eval", "two-hop", "--model", model, *asked)
    assert status == 0, err
    assert json.loads(figures.read_text())["tasks"] == 4


@pytest.mark.parametrize("content", ['{"sampled": 1}', "{}", '{"sampled": {"success": 1}, "greedy": {}}'])
def test_figures_that_were_edited_into_nonsense_are_named(capsys, stopped, content):
    (stopped / "before.json").write_text(content)
    status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 2
    assert "before.json" in err
    (stopped / "before.json").unlink()
    status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 0, err
    assert "before.json is gone" in err
    assert "before" not in json.loads((stopped / "summary.json").read_text())


def test_a_run_whose_judge_is_gone_does_not_go_on(capsys, stopped):
    config = json.loads((stopped / "config.json").read_text())
    with nobody() as url:
        config["recipe"]["judge"] = {**plain(ReasoningReward((url,))), "name": "rrm"}
        (stopped / "config.json").write_text(json.dumps(config))
        status, _, err = run(capsys, "train", "--resume", stopped, "--recipe.judge.url", url)
    assert status == 2 and "cannot be reached" in " ".join(err.split())


# Signals.


def struck(monkeypatch, where, number):
    """The signal comes when `where`, an object and a method's name, is first called; where it tears, just after."""
    owner, name = where
    called, original = [], getattr(owner, name)

    def strike(*given, **named):
        called.append(1)
        if name == "_tear":
            original(*given, **named)
        if len(called) == 1:
            os.kill(os.getpid(), number)
        return None if name == "_tear" else original(*given, **named)

    monkeypatch.setattr(owner, name, strike)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_first_update_leaves_a_checkpoint_and_the_way_on(
    capsys, monkeypatch, model, finished, tmp_path, number, status
):
    folder = tmp_path / "a run"
    with monkeypatch.context() as patch:
        struck(patch, (Learner, "_tear"), number)
        found, _, err = run(capsys, *options(folder, model=model))
    assert found == status
    assert f"step 1 is saved; go on with: palaestra train --resume '{folder}'" in err
    assert "Traceback" not in err
    assert run(capsys, "train", "--resume", folder)[0] == 0
    same_end(folder, finished)


@pytest.mark.parametrize("where", ["measure_before", "measure_after", "keep_model"])
def test_a_signal_around_the_training_says_how_to_go_on(capsys, monkeypatch, model, finished, tmp_path, where):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        struck(patch, (grpo, where), signal.SIGTERM)
        status, _, err = run(capsys, *options(folder, model=model))
    assert status == 143
    assert f"palaestra train --resume {folder}" in err
    assert ("step 3 is saved" in err) == (where != "measure_before")
    assert run(capsys, "train", "--resume", folder)[0] == 0
    same_end(folder, finished)


def test_a_signal_while_the_figures_of_a_finished_run_are_shown_is_the_status(capsys, monkeypatch, finished):
    struck(monkeypatch, (results, "result_table"), signal.SIGTERM)
    status, _, err = run(capsys, "train", "--resume", finished)
    assert (status, "Traceback" in err) == (143, False)


def test_a_signal_before_the_folder_is_made_leaves_none(capsys, monkeypatch, model, tmp_path):
    struck(monkeypatch, (opening, "open_model"), signal.SIGTERM)
    status, _, err = run(capsys, *options(tmp_path / "run", model=model))
    assert status == 143
    assert "before anything was done" in err
    assert os.listdir(tmp_path) == []


def test_the_tiny_agent_is_raised_once(capsys, monkeypatch, tmp_path):
    raised, tokenizer = [], families.TOKENIZERS["tiny"]

    def cold_started(config, model, on_progress):
        raised.append(1)
        return Pupil(serve(tiny_model(len(tokenizer), layers=1), tokenizer, slots=config.play.slots), 1, 1, ())

    monkeypatch.setattr(open_learner, "cold_started", cold_started)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        struck(patch, (grpo, "Rollouts"), signal.SIGINT)
        assert run(capsys, *options(folder))[0] == 130
    assert not (folder / "checkpoints").exists()
    status, _, err = run(capsys, "train", "--resume", folder)
    assert status == 0, err
    assert len(raised) == 1
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "start")
    (folder / "summary.json").unlink()
    before = told(folder)
    assert run(capsys, "train", "--resume", folder)[0] == 0
    assert len(raised) == 2
    assert told(folder) == before


# What else may end a run.


def test_a_full_disk_says_which_step_is_safe_and_how_to_go_on(capsys, stopped):
    metrics = stopped / "metrics.jsonl"
    lines = metrics.read_text()
    rewind = Run.rewind

    def to_a_full_disk(self, step):
        rewind(self, step)
        metrics.unlink()
        metrics.symlink_to("/dev/full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "rewind", to_a_full_disk)
        patch.setattr(Run, "metrics", [])  # /dev/full cannot be read to its end.
        status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 2
    assert "metrics.jsonl could not be written: No space left on device" in err
    assert f"step 2 is saved; go on with: palaestra train --resume {stopped}" in err
    metrics.unlink()
    metrics.write_text(lines)
    assert run(capsys, "train", "--resume", stopped)[0] == 0


def test_two_runs_in_one_folder_are_refused(capsys, stopped):
    with Run.reopened(stopped):
        status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 2
    assert f"in use by process {os.getpid()}" in err
