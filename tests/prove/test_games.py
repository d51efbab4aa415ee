"""The proofs that seats of a game learn: one beside a script, and two at once.

The solver is raised on the game's own demonstrator, which uses its calculator three times in ten. Its greedy play is
good from the start; what must rise is what it does when it is sampled. In the relay one tiny agent plays both seats,
and the guide is asked about what the scout has said, so its success rises from chance only where both learn. Left out:
a critic that learns, seats with weights of their own, seats that work against each other.
"""

import pytest
import relay_world
from relay_world import GUIDE, SCOUT, SEATS

import palaestra
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.agents.policies.table import SeatedEngine
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.evaluation.during_training import evaluate_both
from palaestra.trainers.evaluation.evaluate import by_seat, evaluate
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.cold_start import cold_started
from palaestra.trainers.setup.open_run import limits
from palaestra.trainers.validation import changed

pytestmark = pytest.mark.prove
GAME = "palaestra/solver_critic_v0"
SOLVER, CRITIC = "solver_0", "critic_0"
SOLO = tiny_config(GAME, seed=0, device="cpu", env_options=(f"seat={SOLVER}",))
RELAY = tiny_config(relay_world.GAME, seed=0, device="cpu", steps=16)


def raised(config, demonstrations):
    """A tiny agent that can use its tool and mostly does not."""
    short = {"demonstrations": demonstrations, "first_gate": 150, "imitation_decay": 100}
    return cold_started(changed(config, short)).local


def lesson(agent, model, config):
    """Train on a whole game; the metrics of each step."""
    arena = palaestra.arena(config.env.env_id, 2 * config.play.slots)
    curve = [dict(progress.metrics) for progress in train_learner(Learner(agent, model, config), arena)]
    arena.close()
    assert (
        max(
            step["sampling/sampling_logp_difference/max"]
            for step in curve
            if "sampling/sampling_logp_difference/max" in step
        )
        < 1e-4
    )
    return curve


def test_a_solver_learns_from_games_with_a_scripted_critic():
    local = raised(SOLO, 3000)
    before = evaluate_both(local.agent, SOLO)
    assert before.sampled.success <= 0.60
    critic = ScriptedPolicy(palaestra.demonstrator(GAME))
    table = SeatedEngine({SOLVER: local.agent.engine, CRITIC: critic}, learning=[SOLVER])
    both = changed(SOLO, {"env_options": (), "train_seats": (SOLVER,), "steps": 16})
    curve = lesson(Agent(table, local.agent.chat), local.model, both)
    after = evaluate_both(local.agent, SOLO)
    assert after.sampled.success >= before.sampled.success + 0.30
    assert after.sampled.success >= 0.85
    assert after.greedy.success >= 0.95
    assert after.sampled.tool_share >= before.sampled.tool_share + 0.30
    assert {step[f"seats/{CRITIC}/success"] for step in curve} == {1.0}


def measured(agent):
    """Each seat's report on held-out tasks of the relay."""
    arena = palaestra.arena(relay_world.GAME, RELAY.play.slots, split="eval")
    report, episodes = evaluate(agent, arena, tasks=128, limits=limits(RELAY))
    arena.close()
    return {seat: found for seat, (found, _) in by_seat(report, episodes, SEATS).items()}


def test_two_seats_learn_at_once():
    local = raised(RELAY, 4000)
    before = measured(local.agent)
    assert before[SCOUT].success <= 0.55
    assert before[GUIDE].success <= before[SCOUT].success
    lesson(local.agent, local.model, RELAY)
    after = measured(local.agent)
    for seat in SEATS:
        assert after[seat].success >= before[seat].success + 0.3
        assert after[seat].tool_share >= before[seat].tool_share + 0.3
    assert after[GUIDE].success >= 0.6
