"""Reagent-C: an agent that nobody trains reads a critique of its attempt and tries again; both are measured."""

from contextlib import closing

import pytest
from batches import TOKENIZER, local, same, weights
from test_reagent_u import SAID, improves, repeats  # noqa: F401

import palaestra
from palaestra import UsageError
from palaestra.agents import Agent, ScriptedPolicy, TokenLimits
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.evaluation.second_attempts import attempts, critics
from palaestra.trainers.reward.async_scoring import JudgeResult


def measured(agent, arena, critique=lambda episode: SAID, **how):
    """Both attempts, and the episodes that the critic was asked about."""
    asked = []

    async def judge(episodes):
        asked.extend(episodes)
        return [JudgeResult({}, {"critique": critique(episode)}) for episode in episodes]

    with closing(critics(judge)) as scoring:
        return attempts(agent, arena, scoring, **how), asked


def test_f31_the_second_context_holds_the_question_the_first_answer_and_the_critique_and_nothing_is_trained(two_hop):
    pupil = local()
    before, how = weights(pupil.model), {"tasks": 4, "samples": 2, "limits": TokenLimits(30, 600)}
    plain, played = evaluate(pupil.agent, two_hop, **how)
    both, asked = measured(pupil.agent, two_hop, **how)
    assert same(before, weights(pupil.model))
    assert both.first == plain and [one.start for one in both.first_episodes] == [one.start for one in played]
    assert [one.attempt for one in both.first_episodes] == [one.attempt for one in played]
    assert len(asked) == 8 and not any(one.start.prefix for one in asked), "second attempts are not judged"
    for first, second in zip(both.first_episodes, both.second_episodes, strict=True):
        (row,) = second.rows
        read = TOKENIZER.decode(row.ids[: int(row.sampled.argmax())])
        question, answer = first.attempt.task.prompt, first.attempt.messages[-1]["content"]
        after = read.index(question) + len(question)
        assert read.index(answer, after) < read.index(SAID, after + len(answer))
        assert second.attempt.messages[0] == first.attempt.messages[0]


def test_both_attempts_are_reported_and_compared_by_task(repeats):  # noqa: F811
    both, _ = measured(Agent(ScriptedPolicy(improves)), repeats, tasks=3, samples=2)
    assert (both.first.success, both.second.success) == (0.0, 1.0)
    assert (both.gain.difference, both.gain.wins, both.without_critique) == (1.0, 3, 0)
    assert both.second.calls == 1, "the calls of the first attempt are not counted again"


def test_an_attempt_without_a_critique_is_a_plain_sample_and_counted(repeats):  # noqa: F811
    def fails(episode):
        if episode.start.task == 1:
            raise RuntimeError("no credit")
        return SAID if episode.start.task else ""

    both, _ = measured(Agent(ScriptedPolicy(improves)), repeats, fails, tasks=3)
    seconds = {one.start.task: one for one in both.second_episodes}
    assert both.without_critique >= 2
    assert both.fault == "its judge failed: RuntimeError: no credit"
    assert not seconds[0].start.prefix and not seconds[1].start.prefix
    assert both.second.broken == 0 and len(seconds) == 3


def test_a_game_has_no_second_attempts():
    arena = palaestra.arena("palaestra/negotiation_v0", 4)
    with closing(arena), pytest.raises(UsageError, match="no second attempts"):
        measured(Agent(ScriptedPolicy(improves)), arena, tasks=2)
