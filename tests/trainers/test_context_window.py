"""A harness's request that does not fit is refused as OpenAI's API refuses it, and the episode goes on."""

from contextlib import closing
from dataclasses import replace

import families
import pytest
from test_harness_rows import Numbered, harness_worlds

import palaestra
from palaestra import Ending, Start
from palaestra.agents import Agent, TokenLimits, play
from palaestra.cli.results import report_table
from palaestra.envs import ToolVectorEnv
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.record import Record, from_line, to_line
from palaestra.trainers.audit.tokens import (
    Flat,
    length_findings,
    mask_findings,
    prompt_findings,
    text_findings,
    turn_findings,
)
from palaestra.trainers.evaluation.evaluate import summarise
from palaestra.trainers.evaluation.metrics import episode_metrics, facts_of


def played(author, engine, limits):
    with closing(ToolVectorEnv(author, 1)) as arena:
        (episode,) = play(Agent(engine, engine.chat), arena, [Start(0, 0)], limits=limits)
    return episode


def audit_and_replay(author, episode, chat, longest):
    flat = Flat.of([episode])
    findings = [*mask_findings(flat), *turn_findings(flat, chat), *length_findings([episode], longest, 20)]
    assert [*findings, *text_findings(episode, chat), *prompt_findings(episode, chat)] == []
    env_id = f"test/Rows{author.__name__}-v0"
    palaestra.register(env_id, f"harness_worlds:{author.__name__}")
    record = from_line(to_line(Record(env_id, episode)))
    assert record.episode.attempt == episode.attempt
    assert ReplayMachines().replay([record]) is None
    return record


def audit_and_replay_refusals(author, episode, chat, longest):
    record = audit_and_replay(author, episode, chat, longest)
    more = replace(episode.attempt, refused=episode.attempt.refused + 1)
    difference = ReplayMachines().replay([replace(record, episode=replace(episode, attempt=more))])
    assert difference is not None


@pytest.mark.parametrize("room", [130, 150, 170])
def test_a_history_that_does_not_fit_is_refused_as_openai_does_and_the_episode_goes_on(room):
    chat = families.chat("tiny")
    harness_worlds.Compacts.met.clear()
    episode = played(harness_worlds.Compacts(), Numbered(chat), TokenLimits(20, room))
    met = harness_worlds.Compacts.met
    assert met == [(400, "context_length_exceeded", "messages")] * len(met)
    assert (episode.ending, episode.attempt.turns) == (Ending.ANSWERED, 4)
    assert episode.attempt.refused == len(met) > 0
    assert len(episode.rows) == 1 + len(met)
    audit_and_replay_refusals(harness_worlds.Compacts, episode, chat, room)


def test_a_message_that_is_shortened_goes_on_in_the_row_of_its_dialogue():
    chat = families.chat("tiny")
    episode = played(harness_worlds.Shortens(), Numbered(chat), TokenLimits(20, 110))
    assert (episode.ending, episode.attempt.refused, len(episode.rows)) == (Ending.ANSWERED, 1, 1)
    told = [message["content"] for message in episode.attempt.messages]
    assert told == [episode.attempt.task.prompt, "turn 0", "short", "turn 1"]
    audit_and_replay_refusals(harness_worlds.Shortens, episode, chat, 110)


@pytest.mark.parametrize(("name", "turns", "refused"), [("TooMuch", 1, 1), ("TooMuchAtOnce", 0, 1), ("Repeats", 0, 6)])
def test_a_harness_that_ends_after_a_request_that_did_not_fit_ends_as_too_long(name, turns, refused):
    chat, author = families.chat("tiny"), getattr(harness_worlds, name)
    episode = played(author(), Numbered(chat), TokenLimits(20, 90))
    assert (episode.ending, episode.attempt.turns) == (Ending.LENGTH_LIMIT, turns)
    assert (episode.attempt.refused, episode.attempt.answer, len(episode.rows)) == (refused, None, 1)
    assert episode.attempt.messages[-1]["content"].startswith("long")
    assert episode.reward == 0.0
    audit_and_replay_refusals(author, episode, chat, 20_000)


def test_refusals_and_wishes_that_are_not_followed_are_figures_of_training_and_evaluation():
    chat = families.chat("tiny")
    refusing = played(harness_worlds.Compacts(), Numbered(chat), TokenLimits(20, 130))
    wishing = played(harness_worlds.Wishes(), Numbered(chat), TokenLimits(20, 130))
    assert (refusing.attempt.unfollowed, wishing.attempt.refused, wishing.attempt.unfollowed) == (0, 0, 2)
    figures = episode_metrics([facts_of(episode) for episode in (refusing, wishing)])
    expected = {"refused": refusing.attempt.refused / 2, "unfollowed": 1.0}
    assert {name: figures[f"episodes/{name}"] for name in expected} == expected
    report = summarise([refusing, wishing], 2, 1, 1.0)
    assert report.requests == expected
    assert "requests refused" in str(list(report_table("", {"": report}).columns[0].cells))
    assert not any(name.startswith("episodes/refused") for name in episode_metrics([facts_of(wishing)]))
    audit_and_replay(harness_worlds.Wishes, wishing, chat, 130)
