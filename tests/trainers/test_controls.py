"""Controls: the same start and steps, another lesson, in a process that dies with us."""

import multiprocessing
import os

import families
import numpy as np
import pytest

from palaestra.agents.local_model import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.config import tiny_config
from palaestra.trainers.controls import CONTROLS, Background, own_successes, shuffled
from palaestra.trainers.losses.advantages import group_advantages

REWARDS, GROUPS = [1.0, -1.0, -0.6, 1.0, -0.8, 1.0], [0, 0, 0, 1, 1, 1]


def test_own_successes_are_imitated_and_failures_ignored():
    assert own_successes(REWARDS, GROUPS).tolist() == [1, 0, 0, 1, 0, 1]


def test_shuffled_rewards_are_the_same_rewards_elsewhere(monkeypatch):
    dealt = []

    def watch(rewards, groups):
        dealt.append(list(rewards))
        return group_advantages(rewards, groups)

    monkeypatch.setattr("palaestra.trainers.controls.group_advantages", watch)
    deal = shuffled(0)
    for _ in range(20):
        deal(REWARDS, GROUPS)
    assert all(sorted(rewards) == sorted(REWARDS) for rewards in dealt)
    assert len({tuple(rewards) for rewards in dealt}) > 10
    counts = np.mean([[reward == 1.0 for reward in rewards] for rewards in dealt], axis=0)
    assert (counts > 0.1).all()
    assert (counts < 0.9).all()


def test_a_shuffle_repeats_by_seed():
    one, same, other = shuffled(3), shuffled(3), shuffled(4)
    first = [one(REWARDS, GROUPS).tolist() for _ in range(5)]
    assert first == [same(REWARDS, GROUPS).tolist() for _ in range(5)]
    assert first != [other(REWARDS, GROUPS).tolist() for _ in range(5)]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_control_is_trained_and_its_process_does_not_outlive_a_failure(tmp_path):
    tokenizer = families.TOKENIZERS["tiny"]
    export(tiny_model(len(tokenizer), layers=1, seed=1), tokenizer, tmp_path)
    config = tiny_config(
        "palaestra/TwoHop-v0", steps=1, num_prompts=2, num_generations=2, slots=4, max_turn_tokens=6, device="cpu"
    )
    pids = []

    def fail_in_the_middle():
        with Background() as background:
            control = background.submit(CONTROLS[1], tmp_path, config, 2).result(timeout=300)
            assert control.name == CONTROLS[1]
            assert control.curve == [0.0]
            assert control.measured.sampled.tasks == 2
            pids.extend(background._pool._processes)
            background.submit(CONTROLS[0], tmp_path, tiny_config("palaestra/TwoHop-v0", steps=10_000), 2)
            raise RuntimeError("elsewhere")

    with pytest.raises(RuntimeError, match="elsewhere"):
        fail_in_the_middle()
    for process in multiprocessing.active_children():
        process.join(60)
    assert len(pids) == 1
    assert not alive(pids[0])
