"""Parallel requests of one harness are sampled side by side: the rows, the record and the replay are right."""

import time
from contextlib import closing
from dataclasses import replace

import families
import pytest
from test_context_window import audit_and_replay
from test_harness_rows import Numbered, harness_worlds, spans

from palaestra import Ending, Start, UsageError
from palaestra.agents import Agent, ScriptedPolicy, TokenLimits, play
from palaestra.envs import ToolVectorEnv
from palaestra.envs.harness import machine
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.protocols import AgentTurn


class Together(Numbered):
    """Answers only when it has so many requests, the latest first; it gives up after many polls with fewer."""

    def __init__(self, chat, needed, cut=(), failed=()):
        super().__init__(chat)
        self.needed, self.cut, self.failed, self.polls = needed, cut, failed, 0

    def poll(self, timeout=0.0):
        self.polls += 1
        assert self.polls < 3000, f"only {len(self.ready)} requests are asked at once"
        if len(self.ready) < self.needed:
            time.sleep(min(timeout, 0.01))
            return []
        self.needed = 1
        lost = dict.fromkeys(self.failed, "the server is lost")
        return [
            replace(done, cut=done.ticket in self.cut, fault=lost.get(done.ticket, ""))
            for done in reversed(super().poll())
        ]


def crowd(author, engine, slots=1, limits=None):
    with closing(ToolVectorEnv(author, slots)) as arena:
        starts = [Start(number, number) for number in range(slots)]
        return list(play(Agent(engine, engine.chat), arena, starts, limits=limits))


def test_parallel_requests_of_one_episode_are_sampled_at_once_each_in_a_row_of_its_own():
    chat = families.chat("tiny")
    engine = Together(chat, 12)
    for episode in crowd(harness_worlds.Crowd(), engine, slots=4):
        assert (episode.ending, episode.attempt.turns, len(episode.rows)) == (Ending.ANSWERED, 7, 4)
        assert sorted(len(spans(row.sampled)) for row in episode.rows) == [1, 2, 2, 2]
        places = [(row.ids.tolist(), *span) for row in episode.rows for span in spans(row.sampled)]
        assert {tuple(ids[begin:end]): ids[:begin] for ids, begin, end in places}.items() <= engine.turns.items()
        audit_and_replay(harness_worlds.Crowd, episode, chat, 100_000)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_where_one_of_several_parallel_turns_is_cut_the_episode_ends_with_its_row_last(cut, monkeypatch):
    chat = families.chat("tiny")
    (episode,) = crowd(harness_worlds.Crowd(), Together(chat, 3, cut={cut}))
    turns = 3 - cut  # The latest is answered first, and those after the cut one are withdrawn.
    assert (episode.ending, episode.attempt.turns, len(episode.rows)) == (Ending.LENGTH_LIMIT, turns, turns)
    assert episode.attempt.messages[-1]["content"] == f"turn {cut}"
    record = audit_and_replay(harness_worlds.Crowd, episode, chat, 100_000)
    monkeypatch.setattr(machine, "_LISTEN_SECONDS", 0.05)  # Nothing comes that could be waited for.
    last = {**episode.attempt.messages[-1], "content": "another turn"}
    changed = replace(
        episode.attempt, messages=(*episode.attempt.messages[:-2], {"role": "user", "content": "x"}, last)
    )
    assert ReplayMachines().replay([replace(record, episode=replace(episode, attempt=changed))]) is not None


def test_where_the_engine_fails_at_one_of_several_parallel_turns_the_episode_is_played_once_more():
    (episode,) = crowd(harness_worlds.Crowd(), Together(families.chat("tiny"), 3, failed={1}))
    assert (episode.ending, episode.attempt.turns) == (Ending.ANSWERED, 7)


def test_parallel_requests_beyond_the_limit_of_turns_end_the_episode():
    few = type("Few", (harness_worlds.Crowd,), {"max_turns": 2})
    (episode,) = crowd(few(), Together(families.chat("tiny"), 2))
    assert (episode.ending, episode.attempt.turns) == (Ending.TURN_LIMIT, 2)


class Extends(harness_worlds.Plain):
    """Asks, and asks at once the same with one message more, which does not know the first answer."""

    async def play(self, task, client):
        other = harness_worlds.Client(client.model)
        told = [{"role": "user", "content": task.prompt}]
        await client.send({"messages": told})
        await other.ask([*told, {"role": "user", "content": "more"}])
        other.close()
        return str((await client.receive())[0])


def test_a_request_that_extends_an_unanswered_one_has_a_dialogue_of_its_own(monkeypatch):
    monkeypatch.setattr(harness_worlds, "Extends", Extends, raising=False)
    chat = families.chat("tiny")
    (episode,) = crowd(Extends(), Together(chat, 2))
    assert (episode.ending, episode.attempt.answer) == (Ending.ANSWERED, "200")
    assert sorted(len(messages) for messages, _ in episode.dialogues) == [2, 3]
    audit_and_replay(Extends, episode, chat, 100_000)


class Mixed(harness_worlds.Plain):
    """Asks at once for a turn that fits and for three choices of one that does not."""

    async def play(self, task, client):
        other = harness_worlds.Client(client.model)
        long = {"messages": [{"role": "user", "content": "long " * 200}], "n": 3}
        await other.send(long)
        said = await super().play(task, client)
        status, _ = await other.receive()
        other.close()
        return f"{status} {said}"


def test_a_request_that_does_not_fit_is_refused_once_beside_one_that_does(monkeypatch):
    monkeypatch.setattr(harness_worlds, "Mixed", Mixed, raising=False)
    chat = families.chat("tiny")
    for _ in range(8):  # The requests come in either order.
        (episode,) = crowd(Mixed(), Numbered(chat), limits=TokenLimits(20, 90))
        assert (episode.attempt.refused, episode.attempt.turns, len(episode.rows)) == (1, 1, 1)
        if episode.ending is Ending.ANSWERED:
            assert episode.attempt.answer.startswith("400 turn")
    audit_and_replay(Mixed, episode, chat, 100)


def test_an_arena_takes_the_turns_of_one_slot_in_any_order_and_none_twice():
    with closing(ToolVectorEnv(harness_worlds.Crowd(), 1)) as arena:
        arena.begin(0, Start(0, 0))
        events = arena.recv(1)
        until = time.monotonic() + 30
        while len(events) < 3 and time.monotonic() < until:
            events += arena.more()
        assert sorted(event.dialogue for event in events) == [0, 1, 2]
        assert arena.more() == []
        for number in (2, 1):
            arena.send({0: AgentTurn(f"turn of {number}", number)})
        arena.send({0: AgentTurn("again", 2)})
        with pytest.raises(UsageError, match="nobody asks for a turn of dialogue 2"):
            arena.recv(0, 0.0)


def test_a_rule_plays_parallel_requests_like_any():
    with closing(ToolVectorEnv(harness_worlds.Crowd(), 8)) as arena:
        agent = Agent(ScriptedPolicy(lambda messages, rng: f"after {len(messages)}"))
        played = list(play(agent, arena, [Start(number, number) for number in range(32)]))
    assert [(episode.ending, episode.attempt.turns) for episode in played] == [(Ending.ANSWERED, 7)] * 32
