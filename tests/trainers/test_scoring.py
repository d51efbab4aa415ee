"""Episodes get terms as they end; a judge is asked meanwhile, and what it costs is never a score of 0."""

import asyncio
import gc
import logging
import math
import threading
import time

import families
import pytest

from palaestra.trainers.reward.async_scoring import JudgeResult, Scoring


def outcome(episode):
    return {"outcome": 2 * episode.reward - 1}


def episodes(count):
    return [families.an_episode(seed=seed) for seed in range(count)]


def all_of(scoring, count):
    """What comes back until all have, in the order in which it does."""
    found, until = [], time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += scoring.ready()
        time.sleep(0.002)
    return found


def seeds(found):
    return [scored.episode.start.seed for scored in found]


@pytest.mark.parametrize(
    ("reward", "parts", "said"),
    [
        (None, {}, "it broke"),
        (math.nan, {"success": 0.0}, "its term outcome is nan"),
        (1e308, {"success": 1.0}, "its term outcome is inf"),
    ],
)
def test_what_is_no_number_has_no_terms_and_says_why(reward, parts, said):
    plain = families.an_episode(reward=reward)
    scoring = Scoring(outcome)
    scoring.put(type(plain)(plain.start, plain.attempt, (), plain.ending, reward, parts, plain.fault))
    (scored,) = scoring.ready()
    assert scored.terms is None
    assert said in scored.fault
    assert scoring.ready() == []


def test_a_judge_is_asked_for_several_together_and_adds_its_terms_and_remarks():
    asked = []

    async def judge(found):
        asked.append(len(found))
        return [JudgeResult({"style": episode.start.seed / 10}, {"critique": "good"}) for episode in found]

    scoring = Scoring(outcome, judge, together=4)
    scoring.put(families.an_episode(reward=None))
    for episode in episodes(10):
        scoring.put(episode)
    found = all_of(scoring, 11)
    scoring.close()
    assert sorted(asked) == [2, 4, 4]
    (broken,) = [scored for scored in found if scored.terms is None]
    assert broken.fault == "it broke", "and no judge was asked of it"
    for scored in found:
        if scored is not broken:
            assert scored.terms == {"outcome": 1.0, "style": scored.episode.start.seed / 10}
            assert scored.reward == 1.0 + scored.episode.start.seed / 10
            assert scored.remarks == {"critique": "good"}


def test_a_judge_is_awaited_while_other_episodes_are_played():
    """Nothing blocks: what has no need of it comes at once, and no more requests are out than are allowed."""
    out, most = set(), []
    gate = {}

    async def judge(found):
        out.add(found[0].start.seed)
        most.append(len(out))
        gate.setdefault("open", asyncio.Event())
        await gate["open"].wait()
        out.discard(found[0].start.seed)
        return [JudgeResult({})] * len(found)

    scoring = Scoring(outcome, judge, together=1, at_once=2)
    for episode in episodes(5):
        scoring.put(episode)
    assert scoring.ready() == []
    scoring.put(families.an_episode(reward=None, seed=9))
    assert seeds(scoring.ready()) == [9]
    while len(out) < 2:
        time.sleep(0.002)
    scoring._loop._loop.call_soon_threadsafe(gate["open"].set)
    assert sorted(seeds(all_of(scoring, 5))) == [0, 1, 2, 3, 4]
    scoring.close()
    assert max(most) == 2


async def slow(found):
    await asyncio.sleep(60)


async def failing(found):
    raise RuntimeError("no credit")


async def miscounting(found):
    return [JudgeResult({})] * (len(found) + 1)


async def mad(found):
    return [JudgeResult({"style": math.nan})] * len(found)


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (slow, "its judge failed: TimeoutError"),
        (failing, "its judge failed: RuntimeError: no credit"),
        (miscounting, "3 remarks on 2 episodes"),
        (mad, "its term style is nan"),
    ],
)
def test_a_judge_that_gives_up_costs_its_episodes_their_terms_and_nobody_else_anything(judge, said):
    async def sometimes(found):
        return await judge(found) if found[0].start.seed == 0 else [JudgeResult({"style": 1.0})] * len(found)

    scoring = Scoring(outcome, sometimes, together=2, deadline=0.1)
    for episode in episodes(4):
        scoring.put(episode)
    found = sorted(all_of(scoring, 4), key=lambda scored: scored.episode.start.seed)
    scoring.close()
    assert [scored.terms for scored in found] == [None, None, *[{"outcome": 1.0, "style": 1.0}] * 2]
    assert all(said in scored.fault for scored in found[:2])


@pytest.mark.parametrize("ordered", [True, False])
def test_ordered_scores_come_back_all_at_once_in_the_order_of_their_episodes(ordered):
    judged, gate = [], threading.Event()

    async def judge(found):
        while found[0].start.seed == 0 and not gate.is_set():
            await asyncio.sleep(0.002)
        judged.append(found[0].start.seed)
        return [JudgeResult({})] * len(found)

    scoring = Scoring(outcome, judge, together=1, ordered=ordered)
    for episode in episodes(4):
        scoring.put(episode)
    early = scoring.ready()
    scoring.put(families.an_episode(reward=None, seed=4))
    if ordered:
        while len(judged) < 3:
            time.sleep(0.002)
        assert early + scoring.ready() == []
    else:
        early += all_of(scoring, 4 - len(early))
        assert sorted(seeds(early)) == [1, 2, 3, 4]
    gate.set()
    rest = []
    while not rest:
        rest = scoring.ready()
        time.sleep(0.002)
    scoring.close()
    assert seeds(rest) == ([0, 1, 2, 3, 4] if ordered else [0])


def test_closing_ends_the_judge_and_leaves_nothing_pending(caplog):
    """Of what was asked, what waits for its turn, and what was never asked."""
    ended, begun = [], []

    async def judge(found):
        begun.append(1)
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(1)

    scoring = Scoring(outcome, judge, together=1, at_once=2)
    for episode in episodes(5):
        scoring.put(episode)
    scoring.ready()
    scoring.put(families.an_episode())
    while len(begun) < 2:
        time.sleep(0.002)
    with caplog.at_level(logging.DEBUG):
        scoring.close()
        scoring.close()
        thread = scoring._loop._thread
        del scoring
        gc.collect()
    assert len(ended) == 2
    assert not thread.is_alive()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
