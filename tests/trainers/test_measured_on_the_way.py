"""A run that is measured on its way keeps its best model and ends when it no longer improves; interrupted anywhere, it
comes out the same to the last bit.
"""

import json
import shutil
from collections import deque
from contextlib import closing, suppress
from dataclasses import replace

import gymnasium
import pytest
from batches import TOKENIZER, restless
from families import random_agent
from going import run_of, told
from safetensors.torch import load_file

import palaestra
from palaestra import ConfigError
from palaestra.agents.local_model import serve
from palaestra.envs import Task, ToolEnv
from palaestra.trainers import grpo
from palaestra.trainers.evaluation import during_training as measuring
from palaestra.trainers.run.folder import Run


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_agent(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(autouse=True)
def successes(monkeypatch):
    """What is measured after each step on the way; what is played for it is as it was."""
    measured, real = {1: 0.2, 2: 0.5, 3: 0.5}, measuring.evaluate

    def evaluate(agent, arena, **how):
        report, episodes = real(agent, arena, **how)
        on_the_way = how.get("stage") == measuring.STAGE
        return (replace(report, success=measured[agent.engine.version]) if on_the_way else report), episodes

    monkeypatch.setattr(measuring, "evaluate", evaluate)
    return measured


def go(folder, config=None, until=lambda progress: False):
    """Take a run to its end, or until such a Progress, where it is interrupted; returns all that it reported."""
    seen = []

    def report(progress):
        seen.append(progress)
        if until(progress):
            raise KeyboardInterrupt

    run = Run.reopened(folder, config) if (folder / "config.json").exists() else Run(folder, config)
    with run, suppress(KeyboardInterrupt):
        deque(grpo.train(run, on_progress=report), 0)
    return seen


def kept(folder):
    """Everything that must not depend on where a run was interrupted."""
    summary = json.loads((folder / "summary.json").read_text())
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("model", "best")]
    lines = [(folder / name).read_text() for name in ("measured.jsonl", "before.json", "best/measured.json")]
    return told(folder), weights, lines, {name: summary[name] for name in ("best", "curve", "after")}


@pytest.mark.prove
def test_a_run_interrupted_around_each_measurement_is_the_same_to_the_last_bit(tmp_path, model):
    config = run_of(model, checkpoint_every=4, eval_steps=1)
    whole, parts, plain = (tmp_path / name for name in ("whole", "parts", "plain"))
    go(whole, config)
    go(plain, run_of(model))
    go(parts, config, lambda progress: progress.stage == "grpo" and progress.step == 1)  # Before the measurement,
    go(parts, None, lambda progress: progress.stage == measuring.STAGE and progress.step == 2)  # in the middle of it,
    go(parts, None, lambda progress: progress.stage == measuring.STAGE and progress.note)  # after it,
    lines = (parts / "measured.jsonl").read_text().splitlines(True)
    (parts / "measured.jsonl").write_text("".join(lines[:-1]))  # and killed when only the best was kept.
    go(parts)
    assert kept(parts) == kept(whole)
    assert [line["step"] for line in Run.read(whole).measured] == [1, 2, 3, 4]
    # Measuring changes no weight.
    assert told(plain) == told(whole)
    assert (plain / "model" / "model.safetensors").read_bytes() == (whole / "model" / "model.safetensors").read_bytes()


def test_a_run_that_no_longer_improves_ends_and_the_best_model_is_kept(tmp_path, model, successes):
    config = run_of(model, eval_steps=1, early_stopping_patience=1)
    run, again = tmp_path / "run", tmp_path / "again"
    seen = go(run, config)
    assert "had no more success than step 2, 0.500 [" in seen[-1].note
    summary = Run.read(run).summary
    assert (summary["best"]["step"], summary["steps_taken"], summary["stopped_early"]) == (2, 3, True)
    best = load_file(run / "best" / "model.safetensors")
    of_step_2 = load_file(run / "checkpoints" / "step-000002" / "model" / "model.safetensors")
    assert best.keys() == of_step_2.keys()
    assert all((best[name] == of_step_2[name]).all() for name in best)
    # A kill before the summary: whoever goes on finds that it has ended. With more patience it goes on.
    shutil.copytree(run, again)
    (again / "summary.json").unlink()
    assert not [progress for progress in go(again) if progress.stage == "grpo" and progress.metrics]
    (again / "summary.json").unlink()
    patient = replace(config, eval=replace(config.eval, early_stopping_patience=2))
    assert [progress.step for progress in go(again, patient) if progress.metrics and progress.stage == "grpo"] == [4]


class Sure(ToolEnv):
    """Whatever is answered is right."""

    def task(self, rng):
        return Task(f"Say {rng.integers(10**6)}.")

    def reward(self, attempt):
        return 1.0


def test_a_run_that_is_solved_says_so_once_and_ends_there_if_asked_to_also_after_a_kill(tmp_path, model):
    palaestra.register("test/Sure-v0", f"{__name__}:Sure")
    try:
        config = run_of(model, "grpo-t", steps=8)
        config = replace(config, env=replace(config.env, env_id="test/Sure-v0"))
        stopping = replace(config, eval=replace(config.eval, stop_when="solved"))
        notes = [progress.note for progress in go(tmp_path / "whole", config) if "solved" in progress.note]
        assert len(notes) == 1
        assert "solved" not in Run.read(tmp_path / "whole").summary
        seen = go(tmp_path / "stopped", stopping)
        assert seen[-1].note.startswith("solved: the run ends early, after step 5")
        summary = Run.read(tmp_path / "stopped").summary
        assert (summary["solved"], summary["stopped_early"], summary["steps_taken"]) == (True, True, 5)
        (tmp_path / "stopped" / "summary.json").unlink()
        assert not [progress for progress in go(tmp_path / "stopped") if progress.stage == "grpo" and progress.metrics]
        go(tmp_path / "parts", stopping, lambda progress: progress.stage == "grpo" and progress.step == 3)
        seen = go(tmp_path / "parts")
        assert [progress.step for progress in seen if progress.stage == "grpo" and progress.metrics] == [4, 5]
        assert told(tmp_path / "parts") == told(tmp_path / "stopped")
    finally:
        gymnasium.registry.pop("test/Sure-v0")


def test_every_measurement_plays_the_evaluation_split(tmp_path, model, monkeypatch):
    real, played = measuring.evaluate, []

    def evaluate(agent, arena, **how):
        report, episodes = real(agent, arena, **how)
        played.append({episode.attempt.task.prompt for episode in episodes})
        return report, episodes

    monkeypatch.setattr(measuring, "evaluate", evaluate)
    go(tmp_path / "run", run_of(model, eval_steps=1, steps=2))
    with closing(palaestra.arena("palaestra/TwoHop-v0", 1, split="eval")) as arena:
        held_out = {arena.problem(task).prompt for task in range(4)}
    assert played == [held_out] * 5, "sampled and greedy before and after, and sampled on the way"


def test_greedy_figures_are_of_the_likeliest_tokens_whatever_the_engine_draws(model):
    config, found = run_of(model), {}
    for seed in (0, 1):
        both = measuring.evaluate_both(serve(restless(), TOKENIZER, slots=16, seed=seed).agent, config)
        assert (both.sampled.temperature, both.greedy.temperature) == (1.0, 0.0)
        for name in ("sampled", "greedy"):
            episodes = getattr(both, f"{name}_episodes")
            found[name, seed] = [row.ids.tolist() for episode in episodes for row in episode.rows]
    assert found["greedy", 0] == found["greedy", 1]
    assert found["sampled", 0] != found["sampled", 1]


def test_no_held_out_task_measures_nothing(tmp_path, model):
    seen = go(tmp_path / "run", run_of(model, eval_tasks=0, steps=1))
    summary = Run.read(tmp_path / "run").summary
    assert not {"before", "after", "best"} & summary.keys()
    assert not (tmp_path / "run" / "before.json").exists()
    assert not [progress for progress in seen if "before.json" in progress.note]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"eval_steps": 5, "eval_tasks": 0}, "eval_tasks is 0"),
        ({"early_stopping_patience": 2}, "set eval_steps too"),
        ({"eval_steps": 0}, "greater than or equal to 1"),
    ],
)
def test_measurements_that_cannot_be_are_refused(wrong, said):
    with pytest.raises(ConfigError, match=said):
        run_of("tiny", **wrong)


def test_the_engine_holds_no_cache_while_the_trained_model_is_exported(tmp_path, model, monkeypatch):
    held = []

    def keep_model(run, learner):
        held.append((learner.agent.engine.sampled > 0, learner.agent.engine.held_bytes, learner.agent.engine.released))

    monkeypatch.setattr(grpo, "keep_model", keep_model)
    go(tmp_path / "run", run_of(model, steps=1))
    assert held == [(True, 0, False)], "it has played, holds nothing, and can play again"
