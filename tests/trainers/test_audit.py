"""What an audit finds: nothing in a clean run, and each thing that must not be, by its name, place and cause."""

from dataclasses import replace

import families
import numpy as np
import parrot
import pytest
from batches import batch_of, rewarded

import palaestra
from palaestra import Ending
from palaestra.agents import Chat
from palaestra.trainers import grpo
from palaestra.trainers.audit.groups import group_findings, member_findings
from palaestra.trainers.audit.tokens import (
    Flat,
    length_findings,
    mask_findings,
    prompt_findings,
    repetition,
    text_findings,
    turn_findings,
    version_findings,
)
from palaestra.trainers.batch import Sample
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.uniform import Uniform


def trained(**changes):
    """The steps of a run whose agent calls its tool."""
    arena = palaestra.arena(parrot.ENV, 12)
    try:
        return list(grpo.train_learner(parrot.learner(**changes), arena))
    finally:
        arena.close()


def first(family="tiny", **changes):
    """Episodes of such a run, and its chat."""
    (progress,) = trained(family=family, steps=1, **changes)
    return [episode for episode, _ in progress.rollouts], Chat(families.TOKENIZERS[family])


@pytest.mark.parametrize(("family", "recipe"), [("tiny", "grpo-tcr"), ("qwen2.5", "grpo-t")])
def test_a_clean_run_of_tool_calls_halts_nowhere_and_says_how_far_engine_and_trainer_are_apart(family, recipe):
    steps = trained(family=family, recipe=recipe)
    called = sum(episode.attempt.turns > 1 for episode, _ in steps[0].rollouts)
    assert 0 < called < 12, "with calls and without"
    for progress in steps:
        figures = progress.metrics
        assert 0 <= figures["audit/gap_p50"] <= figures["audit/gap_p95"] <= figures["audit/gap_p99"] < 1e-4
        assert (figures["audit/short_groups"], figures["audit/without_tokens"]) == (0, 0)
        assert figures["optimizer_steps"] > 0


def test_a_turn_that_was_cut_is_right_and_the_same_turn_as_an_answer_is_not():
    episodes, chat = first(cut_every=5)
    cut = [episode for episode in episodes if episode.ending is Ending.LENGTH_LIMIT]
    assert cut
    assert list(turn_findings(Flat.of(episodes), chat)) == []
    graded = [replace(episode, ending=Ending.ANSWERED) for episode in cut]
    assert [one.check for one in turn_findings(Flat.of(graded), chat)] == ["turn ends"] * len(cut)


def other(row, **changes):
    """A row that differs in what `changes` makes of an array."""
    return replace(row, **{name: change(getattr(row, name).copy()) for name, change in changes.items()})


def shifted(values):
    return np.roll(values, 1)


def with_result(mask):
    mask[np.flatnonzero(~mask)[-2:]] = True
    return mask


def without_last(mask):
    mask[np.flatnonzero(mask)[-1]] = False
    return mask


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"sampled": shifted}, "token mask"),
        ({"sampled": with_result}, "token mask"),
        ({"sampled": lambda mask: mask & False}, "token mask"),
        ({"logprobs": lambda said: said * np.nan}, "token mask"),
        ({"logprobs": lambda said: said + 1}, "token mask"),
        ({"versions": lambda said: said * 0}, "token mask"),
        ({"sampled": without_last}, "turn ends"),
        ({"ids": shifted}, "turn ends"),
        ({"ids": lambda ids: np.where(np.arange(len(ids)) == 2, ids + 1, ids)}, "prompts"),
        ({"ids": lambda ids: np.append(ids[:-2], [ids[-2] + 1, ids[-1]]).astype(np.int32)}, "turn texts"),
    ],
)
def test_a_row_in_which_something_is_wrong_contradicts_itself(changes, check):
    episodes, chat = first()
    (episode,) = [one for one in episodes if one.attempt.turns > 1][:1]
    spoiled = replace(episode, rows=(other(episode.rows[0], **changes),))
    flat = Flat.of([episodes[0], spoiled])
    found = [
        *mask_findings(flat),
        *turn_findings(flat, chat),
        *prompt_findings(spoiled, chat),
        *text_findings(spoiled, chat),
    ]
    assert found, "nothing was found"
    assert check in [one.check for one in found]
    start = episode.start
    assert all(one.place.startswith(f"episode of group {start.group}, seed {start.seed}") for one in found)


def test_an_end_of_turn_that_stands_twice_is_found():
    episodes, chat = first()
    (episode,) = [one for one in episodes if one.attempt.turns > 1][:1]
    end = int(np.flatnonzero(episode.rows[0].sampled & (episode.rows[0].ids == chat.end_of_turn))[0])
    doubled = {name: np.insert(getattr(episode.rows[0], name), end + 1, value) for name, value in
               {"ids": chat.end_of_turn, "sampled": False, "logprobs": 0, "versions": -1}.items()}  # fmt: skip
    (found,) = turn_findings(Flat.of([replace(episode, rows=(replace(episode.rows[0], **doubled),))]), chat)
    assert f"token {end}: the end of a turn stands here twice" in str(found)


def test_tokens_of_other_weights_and_rows_beyond_their_limits_are_found():
    episodes, _ = first()
    flat = Flat.of(episodes)
    assert list(version_findings(flat, 0, 0)) == list(version_findings(flat, 1, 1)) == []
    assert len(list(version_findings(flat, 1, 0))) == len(list(version_findings(flat, -1, 0))) == 12
    assert list(length_findings(episodes, 1000, 200)) == []
    assert len(list(length_findings(episodes, 20, 200))) == len(list(length_findings(episodes, 1000, 1))) == 12


def group_of(count=4, **changes):
    rewards = np.linspace(0, 1, count)
    made = [families.an_episode(families.token_row(3, [2]), reward=reward, seed=n) for n, reward in enumerate(rewards)]
    return batch_of([replace(episode, **changes) for episode in made])


def test_groups_that_are_mixed_or_hold_an_episode_twice_are_found():
    assert list(group_findings(group_of())) == []
    batch = rewarded([1, -1, 1, -1], [4, 4, 9, 9])
    assert list(group_findings(batch)) == []
    merged = replace(batch, samples=tuple(Sample(place, 0) for place in range(4)))
    (found,) = group_findings(merged)
    assert "its 4 members have 2 numbers of groups" in found.details
    twice = replace(batch, samples=(Sample(0, 0), Sample(0, 0), Sample(2, 1), Sample(3, 1)))
    assert [one.details for one in group_findings(twice)] == ["its 2 members have an episode more than once"]


def batch_of_one_task(**changes):
    """Two groups of the same task, whose prompts are the same text; `changes` are of the first episode."""
    sampler = Uniform()(parrot.ENV, 1, Groups(2, 3))
    while (start := sampler.next()) is not None:
        episode = replace(families.an_episode(reward=start.seed % 2.0), start=start)
        (scored,) = batch_of([replace(episode, **(changes if not start.seed else {}))]).rollouts
        sampler.observe(scored)
    return sampler.batch()


def test_two_groups_of_one_task_are_two_groups():
    batch = batch_of_one_task()
    assert len({episode.start.task for episode in batch.episodes}) == 1
    assert list(group_findings(batch)) == []
    assert batch.groups.tolist() == [0, 0, 0, 1, 1, 1]


def test_an_episode_that_was_cut_short_from_outside_moves_no_baseline():
    batch = batch_of_one_task(fault="another seat could not go on")
    assert list(member_findings(batch)) == []
    assert batch.groups.tolist() == [0, 0, 1, 1, 1]


def test_a_sample_without_a_reward_and_a_reward_without_a_sample_are_found():
    batch = group_of()
    assert list(member_findings(batch)) == []
    (lost,) = member_findings(replace(batch, samples=batch.samples[1:]))
    assert "is no sample of its group" in lost.details
    broken = replace(batch.rollouts[0], terms=None, fault="it broke")
    (found,) = member_findings(replace(batch, rollouts=(broken, *batch.rollouts[1:])))
    assert "it is a sample" in found.details


def test_repetition_is_the_share_of_runs_that_were_said_before():
    row = families.token_row(2, [8])
    said = [
        replace(row, ids=np.array([7, 7, *ids], np.int32)) for ids in ([1, 2, 3, 4, 1, 2, 3, 4], range(1, 9), [5] * 8)
    ]
    for rows, share in ((said[:1], 1 / 5), (said[1:2], 0), (said[2:], 4 / 5), (said, 5 / 15)):
        assert repetition(Flat.of([families.an_episode(one) for one in rows])) == pytest.approx(share)
    assert repetition(Flat.of([])) == 0
