"""Runs of a tiny random agent, for the tests of stopping and going on."""

import json
from contextlib import closing

import pytest
from batches import settings
from safetensors.torch import load_file

from palaestra.record import read
from palaestra.trainers import grpo
from palaestra.trainers.run.folder import Run
from palaestra.trainers.setup.open_learner import open_learner

STEPS = 4


def run_of(model, recipe="grpo-tcr", **changes):
    """The settings of a run of the model in a folder."""
    kept = {"checkpoint_every": 1, "keep_checkpoints": STEPS, "recorded_groups": 1}
    return settings(recipe, **{"model": str(model), "steps": STEPS, "eval_tasks": 4, **kept, **changes})


def on(folder, config=None, steps=STEPS, interrupts=None):
    """Begin a run, or go on with it, for so many steps; returns its learner."""
    with Run.reopened(folder) if config is None else Run(folder, config) as run:
        learner = open_learner(run)
        with closing(grpo.train(run, learner=learner, interrupts=interrupts)) as stage:
            for _ in range(min(steps, learner.steps - learner.step)):  # Never into the measurement after the last.
                next(stage)
    return learner


def told(folder):
    """All that a run has written down of its steps, but for times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert all(line.pop(name) > 0 for name in ("time/play", "time/learn", "step_time") if name in line)
    episodes = {
        path.name: [
            (r.episode.attempt, [row.ids.tolist() for row in r.episode.rows], [one.advantage for one in r.lessons])
            for r in read(path)
        ]
        for path in sorted((folder / "episodes").iterdir())
    }
    return lines, episodes


def require_same_untimed(folder, other):
    """The steps and episodes of two runs are the same, but for what depends on time where play is ahead: also the gap
    to the engine, which counts only tokens of the newest weights.
    """
    (lines, episodes), (expected, played) = told(folder), told(other)
    gap = ("audit/gap_", "sampling/sampling_logp_difference/")
    timed = ("time/", "staleness/", "num_tokens/sampled", "num_tokens/shared_ratio", *gap)
    for mine, theirs in zip(lines, expected, strict=True):
        mine, theirs = (
            {name: value for name, value in line.items() if not name.startswith(timed)} for line in (mine, theirs)
        )
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert episodes.keys() == played.keys()
    for name, their_episodes in played.items():
        assert sorted(map(repr, episodes[name])) == sorted(map(repr, their_episodes))


def state(path):
    """The tensors of a checkpoint."""
    return load_file(path / "model" / "model.safetensors") | load_file(path / "training.safetensors")


def step_folder(folder, step):
    return folder / "checkpoints" / f"step-{step:06}"


def steps_kept(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())
