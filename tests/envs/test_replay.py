"""Recorded episodes run again come out identical, and whatever is not identical is found."""

from dataclasses import replace

import gymnasium
import pytest

import palaestra
import palaestra.envs
from palaestra import Call, Ending, Episode, Start, Status, Task, UsageError
from palaestra.envs.records.replay import Stage, replay, take_turn
from palaestra.envs.records.rescore import find_scorer, rescore
from palaestra.record import Record, from_line, to_line


def played(env_id, turns, *, ending=None, last="", task=3, prefix=(), **options):
    """A record of these turns, made through the machine as `play` makes it."""
    env = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    start = Start(task, seed=7, prefix=prefix)
    event = env.begin(start)
    tools = event.tools
    for turn in turns:
        prepared = env.open_turn(turn if isinstance(turn, str) else "".join(env.call(name, **a) for name, a in turn))
        event = env.close_turn([env.run_call(one) for one in prepared])
    if ending is not None:
        event = env.finish(ending, last)
    episode = Episode(start, event.attempt, (), event.ending, event.reward, event.parts, event.fault, tools)
    env.close()
    return from_line(to_line(Record(env_id, episode, options)))


def difference(record):
    return replay(Stage().env(record), record.episode)


KITCHEN = [
    [("add", {"a": 1}), ("note", {"line": "x" * 500})],
    "<tool_call>{nonsense}</tool_call>",
    [("refuse", {})],
]


@pytest.fixture
def kitchen(worlds):
    return played("test/Kitchen-v0", [*KITCHEN, "yes"])


def test_every_kind_of_call_comes_out_identical_without_running_anything(kitchen, worlds):
    statuses = [call.status for call in kitchen.episode.attempt.calls]
    assert statuses == [Status.OK, Status.OK, Status.BAD_CALL, Status.TOOL_ERROR]
    worlds.opened.clear()
    assert difference(kitchen) is None
    assert worlds.opened == [], "a toolkit was started"


@pytest.mark.parametrize(
    ("turns", "ending", "last"),
    [
        ([], Ending.LENGTH_LIMIT, ""),
        ([], Ending.LENGTH_LIMIT, "I was just about to"),
        (KITCHEN, Ending.LENGTH_LIMIT, "and then"),
        (KITCHEN, Ending.LENGTH_LIMIT, ""),
        (KITCHEN[:1], Ending.BROKEN, ""),
        ([], Ending.BROKEN, "half a"),
        ([KITCHEN[0]] * 5, None, ""),
    ],
)
def test_every_ending_comes_out_identical(worlds, turns, ending, last):
    record = played("test/Kitchen-v0", turns, ending=ending, last=last)
    assert record.episode.ending is (ending or Ending.TURN_LIMIT)
    assert difference(record) is None


def test_an_episode_after_a_prefix_comes_out_identical(worlds):
    prefix = ({"role": "assistant", "content": "no"}, {"role": "user", "content": "try again"})
    assert difference(played("test/Kitchen-v0", [KITCHEN[0], "yes"], prefix=prefix)) is None


def test_the_task_is_taken_from_the_record_not_drawn_again(worlds):
    record = played("test/Kitchen-v0", ["yes"])
    attempt = record.episode.attempt
    other = replace(attempt, task=Task("What?", answer="yes"), messages=(attempt.messages[0], *attempt.messages[1:]))
    found = difference(replace(record, episode=replace(record.episode, attempt=other)))
    assert found is not None
    assert "opening message 1" in found.where


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda e: replace(e, reward=0.25), "reward"),
        (lambda e: replace(e, parts={"success": 0.5, "brevity": 0.0}), "parts"),
        (lambda e: replace(e, ending=Ending.TURN_LIMIT), "ending"),
        (lambda e: replace(e, attempt=replace(e.attempt, answer="no")), "answer"),
        (lambda e: replace(e, attempt=replace(e.attempt, turns=9)), "turns"),
    ],
)
def test_a_record_that_says_otherwise_is_found(kitchen, change, where):
    found = difference(replace(kitchen, episode=change(kitchen.episode)))
    assert found is not None
    assert where in found.where


def with_call(record, place, **changes):
    calls = list(record.episode.attempt.calls)
    calls[place] = replace(calls[place], **changes)
    return replace(record, episode=replace(record.episode, attempt=replace(record.episode.attempt, calls=tuple(calls))))


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (0, {"text": "3"}),
        (0, {"arguments": {"a": 2}}),
        (0, {"name": "note"}),
        (0, {"status": Status.BAD_CALL}),
        (2, {"text": "Error: another"}),
    ],
)
def test_an_outcome_that_does_not_fit_what_was_seen_is_found(kitchen, place, changes):
    assert difference(with_call(kitchen, place, **changes)) is not None


def test_missing_and_surplus_outcomes_are_found(kitchen):
    attempt = kitchen.episode.attempt
    for calls in (attempt.calls[:-1], (*attempt.calls, Call("add", {"a": 1}, "2", Status.OK))):
        assert difference(replace(kitchen, episode=replace(kitchen.episode, attempt=replace(attempt, calls=calls))))


def test_a_changed_tool_reply_is_found(kitchen):
    attempt = kitchen.episode.attempt
    messages = [dict(m, content="9") if m["role"] == "tool" else m for m in attempt.messages]
    found = difference(replace(kitchen, episode=replace(kitchen.episode, attempt=replace(attempt, messages=messages))))
    assert found is not None
    assert "message" in found.where


def test_a_reward_that_now_raises_is_a_difference(kitchen, worlds, monkeypatch):
    monkeypatch.setattr(worlds.Kitchen, "reward", lambda self, attempt: 1 / 0)
    found = difference(kitchen)
    assert found is not None
    assert "ZeroDivisionError" in str(found)


def test_after_a_replay_the_environment_plays_on_as_before(kitchen, worlds):
    env = Stage().env(kitchen)
    assert replay(env, kitchen.episode) is None
    env.begin(Start(1, 1))
    env.close_turn([env.run_call(one) for one in env.open_turn(env.call("note", line="a"))])
    assert "start" in worlds.opened
    env.close()


def test_recorded_outcomes_can_lead_to_any_turn(kitchen):
    env = Stage().env(kitchen)
    env.reopen(kitchen.episode.start, kitchen.episode.attempt.task)
    outcomes = iter(kitchen.episode.attempt.calls)
    said = [m["content"] for m in kitchen.episode.attempt.messages if m["role"] == "assistant"]
    for text in said[:2]:
        assert take_turn(env, text, outcomes).ending is None
    assert env.attempt.messages == kitchen.episode.attempt.messages[: len(env.attempt.messages)]
    assert env.turns == 2


def test_a_whole_suite_of_demonstrations_replays(worlds):
    from palaestra.agents import Agent, ScriptedPolicy, play

    for env_id in ("palaestra/TwoHop-v0", "palaestra/Calculator-v0", "palaestra/Arithmetic-v0"):
        arena = palaestra.arena(env_id, 8)
        starts = (Start(task, seed=task) for task in range(16))
        agent = Agent(ScriptedPolicy(palaestra.demonstrator(env_id)))
        records = [from_line(to_line(Record(env_id, e, {"split": "train"}))) for e in play(agent, arena, starts)]
        arena.close()
        stage = Stage()
        assert len(records) == 16
        assert [replay(stage.env(record), record.episode) for record in records] == [None] * 16


# Another reward.


def shout(attempt):
    return {"success": 0.5, "loud": 2.0 * (attempt.answer or "").isupper() + 1.0}


shout.parts = {"success": palaestra.envs.RewardPart(), "loud": palaestra.envs.RewardPart(weight=0.25, high=3.0)}


def twice(attempt):
    return 2.0


def extra(attempt):
    return {"success": 1.0, "extra": 2}


def half(attempt):
    return {"extra": 2}


def careless(attempt):
    return 1.0


careless.parts = {"won": palaestra.envs.RewardPart()}


def nothing(attempt):
    return float("nan")


def fails(attempt):
    raise KeyError("gone")


@pytest.fixture
def module(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "my_rewards", sys.modules[__name__])


def test_a_function_is_another_reward(kitchen, module):
    new = rescore(kitchen, find_scorer("my_rewards:shout")).episode
    assert (new.reward, new.parts) == (0.75, {"success": 0.5, "loud": 1.0})
    assert new.attempt == kitchen.episode.attempt


def test_an_environment_is_another_reward_and_its_own_gives_the_same(kitchen):
    new = rescore(kitchen, find_scorer("test/Kitchen-v0")).episode
    assert (new.reward, new.parts) == (kitchen.episode.reward, kitchen.episode.parts)


def test_a_broken_episode_stays_without_a_reward(worlds, module):
    record = played("test/Kitchen-v0", [], ending=Ending.BROKEN)
    assert rescore(record, find_scorer("my_rewards:shout")).episode.reward is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "success = nan"),
        ("fails", r"raised KeyError: 'gone' \(in task train/3\)"),
        ("twice", r"success = 2.0; its declared range is \[0.0, 1.0\]"),
        ("extra", r"'extra', which is not declared.*extra\.parts = \{'success': RewardPart\(\), 'extra': RewardPart"),
        ("half", "'extra', which is not declared"),
        ("careless", "parts has no 'success'"),
    ],
)
def test_a_function_is_held_to_what_environments_are_held_to(kitchen, module, name, said):
    with pytest.raises(palaestra.EnvironmentDefect, match=said):
        rescore(kitchen, find_scorer(f"my_rewards:{name}"))


@pytest.mark.parametrize("name", ["absent_module:x", "my_rewards:absent", "test/Kitchn-v0", "json:__name__"])
def test_a_reward_that_is_not_there_is_named(worlds, module, name):
    with pytest.raises(UsageError):
        find_scorer(name)
