"""The proof that a seat of a game learns: a solver, whose critic is a script, gives up its bad habit of guessing.

The solver is raised on the game's own demonstrator, which uses its calculator three times in ten. Its greedy play is
good from the start; what must rise is what it does when it is sampled. This shows that the loop trains one seat of
several from games that are really played. Two seats that learn at once are `test_two_seats`'; it shows nothing of a
critic that learns.
"""

from dataclasses import replace

import pytest
import torch

import palaestra
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.agents.local_model import export
from palaestra.agents.policies.table import SeatedEngine
from palaestra.trainers.cold_start import ColdStartConfig
from palaestra.trainers.config import tiny_config
from palaestra.trainers.grpo import train
from palaestra.trainers.learner import Learner
from palaestra.trainers.lesson import evaluate_both, open_model, raise_tiny

pytestmark = pytest.mark.prove
GAME = "palaestra/solver_critic_v0"
SOLVER, CRITIC = "solver_0", "critic_0"
SOLO = tiny_config(GAME, seed=0, device="cpu", env_options=(f"seat={SOLVER}",))
BOTH = replace(SOLO, env_options=(), train_seats=(SOLVER,), steps=16)
TASKS = 256


@pytest.fixture(scope="module")
def pupil(tmp_path_factory):
    """The folder of a tiny solver that can use its calculator and mostly does not."""
    folder = tmp_path_factory.mktemp("solver")
    stage = raise_tiny(SOLO, ColdStartConfig(demonstrations=3000, first_gate=150, decay_steps=100))
    while True:
        try:
            next(stage)
        except StopIteration as end:
            local = end.value.local
            break
    export(local.model, local.tokenizer, folder)
    return folder


def lesson(pupil, config):
    """Train a copy of the solver against the scripted critic; the copy and the metrics of each step."""
    local = open_model(str(pupil), config)
    critic = ScriptedPolicy(palaestra.demonstrator(GAME))
    table = SeatedEngine({SOLVER: local.agent.engine, CRITIC: critic}, learning=[SOLVER])
    arena = palaestra.arena(GAME, 2 * config.slots)
    learner = Learner(Agent(table, local.agent.chat), local.model, config)
    curve = [dict(progress.metrics) for progress in train(learner, arena)]
    arena.close()
    return local, curve


def test_a_solver_learns_from_games_with_a_scripted_critic(pupil):
    before = evaluate_both(open_model(str(pupil), SOLO).agent, SOLO, TASKS)
    assert before.sampled.success <= 0.60
    local, curve = lesson(pupil, BOTH)
    after = evaluate_both(local.agent, SOLO, TASKS)
    assert after.sampled.success >= before.sampled.success + 0.30
    assert after.sampled.success >= 0.85
    assert after.greedy.success >= 0.95
    assert after.sampled.tool_share >= before.sampled.tool_share + 0.30
    assert {step[f"seats/{CRITIC}/success"] for step in curve} == {1.0}
    assert max(step["sampling/sampling_logp_difference/max"] for step in curve) < 1e-4


def test_a_solver_that_does_not_learn_stays_as_it_was(pupil):
    local, curve = lesson(pupil, replace(BOTH, steps=3, learning_rate=0.0))
    untouched = open_model(str(pupil), SOLO).model
    assert curve[0]["grad_norm"] > 0
    pairs = zip(local.model.parameters(), untouched.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
