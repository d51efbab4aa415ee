"""Advantages token by token, against values worked by hand."""

from dataclasses import replace

import families
import numpy as np
import pytest
from batches import batch_of

from palaestra.episode import Status
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.losses.token_advantages import TurnAdvantage, Whitened, served_by_turn, turn_of_tokens


def spoken(lengths, rewards, groups=None):
    """A batch of episodes of so many sampled tokens, in turns."""
    made = [
        families.an_episode(families.token_row(3, said, seed=i), reward=reward, group=(groups or [0] * 9)[i])
        for i, (said, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    return batch_of(made)


@pytest.mark.parametrize("advantage", [Whitened(), Whitened(group_baseline=True), TurnAdvantage()])
def test_equal_rewards_teach_exactly_nothing(advantage):
    for values in advantage(spoken([[2, 1], [3]], [0.7, 0.7]), BatchScores()):
        assert not np.asarray(values).any()


def called(statuses, reward, seed=0, group=0, length=2):
    """An episode with a turn for each status, in which that call was made, and a last turn without one."""
    row = families.token_row(3, [length] * (len(statuses) + 1), seed=seed)
    made = families.an_episode(row, reward=reward, calls=statuses, group=group, seed=seed)
    messages = [{"role": "user", "content": "q"}]
    for status in statuses:
        messages += [{"role": "assistant", "content": "c"}, {"role": "tool", "content": str(status)}]
    messages.append({"role": "assistant", "content": "Kemu"})
    return replace(made, attempt=replace(made.attempt, messages=tuple(messages)))


def test_a_turns_tokens_are_told_from_those_of_the_next():
    made = called([Status.OK, Status.TOOL_ERROR], 1.0)
    assert turn_of_tokens(made).tolist() == [0, 0, 1, 1, 2, 2]
    assert served_by_turn(made) == [1.0, 0.0, None]


def test_credit_turn_by_turn_adds_how_a_turns_calls_fared_to_the_episodes_advantage():
    """All succeed alike, so the episodes' own advantages are 0; one of four failed in its first call."""
    good, bad = [Status.OK, Status.OK], [Status.TOOL_ERROR, Status.OK]
    batch = batch_of([called(one, 1.0, seed) for seed, one in enumerate([good, good, good, bad])])
    values = TurnAdvantage(turn_weight=0.2)(batch, BatchScores())
    np.testing.assert_allclose(values[3], 0.2 * np.array([-1.5, -1.5, 0, 0, 0, 0]), atol=1e-5)
    np.testing.assert_allclose(values[0], 0.2 * np.array([0.5, 0.5, 0, 0, 0, 0]), atol=1e-5)
    plain = TurnAdvantage(turn_weight=0.0)(batch, BatchScores())
    assert not np.concatenate(plain).any()
