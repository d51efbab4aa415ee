"""The proof that two seats learn at once: one tiny agent plays both, and each gives up guessing.

The guide is asked about what the scout has said, so its success is bounded by the scout's: it rises from chance only
where both learn. Each seat's episodes are compared with those of its own seat alone. What this does not show is seats
with weights of their own, nor seats that work against each other.
"""

import pytest
import relay_world
from relay_world import GAME, GUIDE, SCOUT, SEATS

import palaestra
from palaestra.trainers.cold_start import ColdStartConfig
from palaestra.trainers.config import tiny_config
from palaestra.trainers.evaluate import by_seat, evaluate
from palaestra.trainers.grpo import train
from palaestra.trainers.learner import Learner
from palaestra.trainers.lesson import limits, raise_tiny
from palaestra.trainers.progress import result_of

pytestmark = pytest.mark.prove
CONFIG = tiny_config(GAME, seed=0, device="cpu", steps=16)
TASKS = 128


def measured(agent):
    """Each seat's report on held-out tasks."""
    arena = palaestra.arena(GAME, CONFIG.slots, split="eval")
    report, episodes = evaluate(agent, arena, tasks=TASKS, limits=limits(CONFIG))
    arena.close()
    return {seat: found for seat, (found, _) in by_seat(report, episodes, SEATS).items()}


def test_two_seats_learn_at_once():
    assert palaestra.registry.author_class(GAME) is relay_world.Relay
    local = result_of(raise_tiny(CONFIG, ColdStartConfig(demonstrations=4000, first_gate=150, decay_steps=100))).local
    before = measured(local.agent)
    assert before[SCOUT].success <= 0.55
    assert before[GUIDE].success <= before[SCOUT].success
    arena = palaestra.arena(GAME, 2 * CONFIG.slots)
    curve = [dict(step.metrics) for step in train(Learner(local.agent, local.model, CONFIG), arena)]
    arena.close()
    after = measured(local.agent)
    for seat in SEATS:
        assert after[seat].success >= before[seat].success + 0.3
        assert after[seat].tool_share >= before[seat].tool_share + 0.3
    assert after[GUIDE].success >= 0.6
    assert max(step["sampling/sampling_logp_difference/max"] for step in curve) < 1e-4
