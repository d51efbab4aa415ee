"""Snapshots: an episode goes on from one exactly as it would have, and branches share nothing."""

import threading

import numpy as np
import pytest
from driven import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import Broken, Start, Task
from palaestra.envs import TextEnv, ToolEnv, Toolkit, tool
from palaestra.envs.arena.driving import settle

lives: list[str] = []


class Box(Toolkit):
    """Holds things, and draws from the generator it was given."""

    def __init__(self):
        self.things = None

    def start(self, task, rng):
        lives.append("start")
        self.things, self.rng = [], rng

    def close(self):
        lives.append("close")
        self.things = None

    def snapshot(self):
        return self.things, self.rng

    def restore(self, state):
        lives.append("restore")
        self.things, self.rng = state

    @tool
    def drop(self, thing: str) -> str:
        """Put a thing in and draw a number."""
        self.things.append(thing)
        return f"{self.things} {self.rng.integers(10**9)}"


class Room(ToolEnv):
    """State in every place where an author may keep it."""

    max_turns = 40
    toolkits = (Box,)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.server = threading.Lock()
        self.visits = 0

    def task(self, rng):
        return Task(f"Go {rng.integers(10**6)}.", answer="done")

    @tool
    def walk(self, way: str) -> str:
        """Go somewhere; the way so far and a number."""
        if not hasattr(self, "path"):
            self.path, self.alias, self.dice, self.me = [], None, self.rng, self
            self.alias = self.path
        self.alias.append(way)
        self.visits += 1
        assert self.me is self
        return f"{self.path} {self.visits} {self.dice.integers(10**9)} {self.rng.integers(10**9)}"

    def reward(self, attempt):
        return float(attempt.answer == "done")


class Closed(Room):
    """One of its toolkits cannot be branched."""

    class Page(Toolkit):
        """Has no snapshots."""

    toolkits = (Box, Page)


def opened(cls=Room, seed=1):
    env = TextEnv(cls())
    env.reset(seed=seed, options={"task": 3})
    return env


def walk(env, way):
    return env.step(env.call("walk", way=way) + env.call("drop", thing=way))[0]


def seen(env):
    attempt = env.attempt
    return attempt.messages, attempt.calls, attempt.turns


def play(env):
    """The author's object as the running episode has it."""
    return env.machine.state.play


def box(env):
    """The toolkit of an environment."""
    return env.machine.kits.instances[0][1]


def start(env):
    """The Start that the episode's record will have."""
    return env.machine.state.seats[None].start


@pytest.fixture(autouse=True)
def no_lives():
    lives.clear()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.lists(st.sampled_from("nesw"), min_size=1, max_size=4), st.integers(0, 9))
def test_an_episode_goes_on_from_a_snapshot_exactly_as_it_would_have(before, after, seed):
    env = opened(seed=seed)
    for number in range(before):
        walk(env, str(number))
    snapshot, there = env.snapshot(), seen(env)
    first = [walk(env, way) for way in after]
    end = seen(env)
    other = opened(seed=77)
    walk(other, "elsewhere")
    for again in (env, other, env):
        again.restore(snapshot)
        assert seen(again) == there
        assert [walk(again, way) for way in after] == first
        assert seen(again) == end
    assert env.attempt.task == other.attempt.task


def test_restore_returns_what_the_agent_has_not_seen_yet():
    env = TextEnv(Room())
    opening, opening_info = env.reset(seed=1)
    before = env.snapshot()
    reply = walk(env, "n")
    after = env.snapshot()
    walk(env, "s")
    observation, info = env.restore(after)
    assert (observation, info["turn"], set(info)) == (reply, 1, set(opening_info))
    assert env.restore(before)[0] == opening
    assert (play(env).visits, hasattr(play(env), "path")) == (0, False), "what came after it is gone"


def test_an_ended_or_discarded_episode_is_opened_again_and_a_toolkit_is_open_and_closed_once():
    env = opened()
    walk(env, "n")
    snapshot = env.snapshot()
    env.step("wrong")
    assert not env.is_open
    env.restore(snapshot)
    assert env.is_open
    assert env.step("done")[1] == 1.0
    env.reset(seed=5)
    env.restore(snapshot)
    assert env.step("done")[4]["attempt"].turns == 2
    assert lives == ["start", "close", "restore", "close", "start", "close", "restore", "close"]


def test_branches_share_nothing_and_leave_their_parent_alone():
    env = opened()
    walk(env, "n")
    there = seen(env)
    children = env.fork(3)
    assert all(seen(child) == there for child in children)
    for child, way in zip(children, "esw", strict=True):
        walk(child, way)
    for held in ([play(child).path for child in (env, *children)], [box(child).things for child in (env, *children)]):
        assert held == [["n"], ["n", "e"], ["n", "s"], ["n", "w"]]
    assert seen(env) == there
    assert all(play(child).server is env.author.server for child in children), "what a constructor set is shared"
    children[0].close()
    assert all(child.is_open for child in (env, *children[1:]))


def test_branches_differ_in_noise_and_forking_again_repeats_them():
    env = opened()
    walk(env, "n")
    expected = opened()
    walk(expected, "n")
    once, again = env.fork(3), env.fork(3)
    grandchildren = [grandchild for child in once for grandchild in child.fork(2)]
    for child in (*once, *grandchildren):
        assert play(child).rng is play(child).dice is box(child).rng is not play(env).rng
    said = [walk(child, "e") for child in (*once, *grandchildren)]
    assert [walk(child, "e") for child in again] == said[:3]
    assert len(set(said)) == 9
    assert walk(env, "e") == walk(expected, "e") != said[0]
    (early,) = env.fork(1)
    env.step(env.call("nobody"))  # Nothing is drawn between the two.
    (late,) = env.fork(1)
    play(env)._rng = np.random.Generator(np.random.MT19937(3))
    assert len({int(play(child).rng.integers(10**9)) for child in env.fork(2)}) == 2, "of another kind too"
    seeds = [start(child).seed for child in (env, *once, *grandchildren, early, late)]
    assert len(set(seeds)) == 12
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert [start(child) for child in env.fork(2, own_noise=False)] == [start(env)] * 2
    assert len({walk(one, "e") for one in (env, *env.fork(2, own_noise=False))}) == 1


def test_what_has_no_snapshot_or_takes_none_says_why():
    env, closed = TextEnv(Room()), opened(Closed)
    prefix = ({"role": "assistant", "content": "earlier"},)

    refused("no episode of Room runs", env.snapshot)
    settle(env.machine, env.machine.open({None: Start(0, 1, prefix=prefix)}))
    snapshot = env.snapshot()
    assert env.restore(snapshot)[1]["messages"][-1]["content"] == "earlier"
    env.step("done")
    refused("no episode of Room runs", env.snapshot)
    refused("expected a Snapshot of Closed", TextEnv(Closed()).restore, snapshot)
    refused("expected a Snapshot of Room", env.restore, None)
    refused("at least 1", opened().fork, 0)
    refused("toolkit Page does not support them", closed.snapshot)
    refused("toolkit Page does not support them", closed.fork, 2)
    assert walk(closed, "n")
    env = opened()
    play(env).lock = threading.Lock()
    refused(r"self\.lock \(lock\) cannot be copied.*; set it in __init__ if it belongs to no", env.snapshot)
    del play(env).lock
    box(env).things.append(threading.Lock())
    refused("the state of its toolkit Box", env.snapshot)


@pytest.mark.parametrize("good", [0, 1])
def test_a_toolkit_that_does_not_come_back_is_broken_and_leaves_nothing_open(monkeypatch, good):
    env, restore = opened(), Box.restore
    snapshot = env.snapshot()

    def fail(self, state):
        restore(self, state)
        if lives.count("restore") > good:
            raise OSError("no session")

    monkeypatch.setattr(Box, "restore", fail)
    with pytest.raises(Broken, match="no session"):
        env.fork(3)
    assert env.is_open
    assert lives == ["start", *["restore"] * (good + 1), *["close"] * (good + 1)]
    with pytest.raises(Broken, match="no session"):
        env.restore(snapshot)
    assert not env.is_open
    assert lives.count("close") == 1 + lives.count("restore")
