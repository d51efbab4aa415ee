"""Scripts play by rule, and alike however their turns are mixed."""

import families

from palaestra import Request, Start
from palaestra.agents import Agent, ScriptedPolicy, play


def said(policy, start, turn):
    policy.submit(Request(0, start, turn, (), (), (), 1))
    return policy.poll()[0].text


def dice(messages, rng):
    return str(rng.integers(10**9))


def test_a_script_sees_the_dialogue_so_far():
    def count(messages, rng):
        return f"{len(messages)} {messages[-1]['content']}"

    (episode,) = play(Agent(ScriptedPolicy(count)), families.Talk(1, replies=("reply",)), [Start(2, 0)])
    assert [m["content"] for m in episode.attempt.messages] == ["2 question 2?", "4 reply", "6 reply"]


def test_dice_are_keyed_by_seed_start_and_turn_alone():
    base = said(ScriptedPolicy(dice), Start(1, 2), 3)
    mixed = ScriptedPolicy(dice)
    for seed in range(5):
        said(mixed, Start(1, seed + 10), 0)
    assert said(mixed, Start(1, 2, group=7), 3) == base
    others = [
        said(ScriptedPolicy(dice, seed=1), Start(1, 2), 3),
        said(mixed, Start(2, 2), 3),
        said(mixed, Start(1, 3), 3),
        said(mixed, Start(1, 2), 4),
    ]
    assert len({base, *others}) == 5


def test_a_cancelled_turn_is_not_handed_out():
    policy = ScriptedPolicy(dice)
    first = policy.submit(Request(0, Start(0, 0), 0, (), (), (), 1))
    second = policy.submit(Request(0, Start(0, 0), 0, (), (), (), 1))
    policy.cancel(first)
    policy.cancel(99)
    assert [completion.ticket for completion in policy.poll()] == [second]
    assert policy.poll() == []
