"""The proof that an agent learns through its harness as in the ordinary environment: TwoHop as a loop of requests.

A third harness rewrites its history, so that each of its turns is a row of its own.
"""

import sys
from pathlib import Path

import pytest

import palaestra
from palaestra.agents.model_folder import export
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.cold_start import cold_started
from palaestra.trainers.setup.open_run import open_arena, open_model

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
pytestmark = pytest.mark.prove
GAP = "sampling/sampling_logp_difference/max"
STEPS = 10


def test_grpo_learns_through_a_harness_as_in_the_ordinary_environment(tmp_path):
    palaestra.register("prove/Hops-v0", "harness_worlds:Hops")
    palaestra.register("prove/Rewriting-v0", "harness_worlds:Hops", rewrites=True)
    pupil = cold_started(tiny_config("palaestra/TwoHop-v0", seed=0, device="cpu")).local
    export(pupil.model, pupil.tokenizer, tmp_path)
    curves, gaps = {}, {}
    for env_id in ("palaestra/TwoHop-v0", "prove/Hops-v0", "prove/Rewriting-v0"):
        config = tiny_config(env_id, seed=0, device="cpu", steps=STEPS)
        local, practice = open_model(str(tmp_path), config), open_arena(config)
        steps = [dict(step.metrics) for step in train_learner(Learner(local.agent, local.model, config), practice)]
        practice.close()
        curves[env_id] = [round(step["rewards/success/mean"], 3) for step in steps]
        gaps[env_id] = max(step[GAP] for step in steps if GAP in step)
    print(curves, gaps)
    ordinary = curves["palaestra/TwoHop-v0"]
    assert ordinary[-1] >= ordinary[0] + 0.4
    for env_id, curve in curves.items():
        assert abs(curve[0] - ordinary[0]) < 0.1
        assert curve[-1] >= ordinary[-1] - 0.1, curves
        assert gaps[env_id] < 1e-4
