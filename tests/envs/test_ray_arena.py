"""Episodes that Ray workers play: the same ones, by several processes, and no loss of a worker stops the others."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from driven import PATIENCE, begun, call, heard

import palaestra
from palaestra import Ending, Start, UsageError
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.arena import ray_cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.prove
SHIFT = "ray_worlds:test/Shift-v0"
WAIT = call("wait", seconds=0.02)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests here; whoever leaves it last ends its processes."""
    terminate = signal.getsignal(signal.SIGTERM)
    ray = ray_cluster.join("")
    assert signal.getsignal(signal.SIGTERM) is terminate, "a trainer's handler must stay"
    assert rays(), "this test cannot see Ray's processes"
    yield ray
    ray_cluster.leave(ray)
    assert not ray.is_initialized()
    assert soon(lambda: not rays()), f"still there: {rays()}"


@pytest.fixture
def shift(cluster):
    """What opens an arena of Shift, closed after the test."""
    opened = []

    def opens(slots, workers=2, env_id=SHIFT, **options):
        opened.append(palaestra.arena(env_id, slots, workers=workers, **options))
        return opened[-1]

    yield opens
    for arena in opened:
        arena.close()


def rays():
    """Processes of this one's that belong to Ray."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    ours, found = {str(os.getpid())}, []
    while fresh := [row for row in rows if row[1] in ours and row[0] not in ours]:
        ours |= {row[0] for row in fresh}
        found += [row[2] for row in fresh if "ray" in row[2]]
    return found


def soon(true):
    until = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    return true()


def played(env_id, rule, starts, **options):
    with closing(palaestra.arena(env_id, 6, **options)) as arena:
        return list(play(Agent(ScriptedPolicy(rule)), arena, starts(arena)))


def waits(messages, rng):
    """Wait for a time that differs from episode to episode, then answer."""
    if sum(message["role"] == "assistant" for message in messages) < 2:
        return call("wait", seconds=int(rng.integers(4)) / 100)
    return "done" if rng.integers(2) else "no"


def told(episodes):
    return [(one.start, one.ending, one.reward, one.attempt.messages[0], one.attempt.turns) for one in episodes]


def pid_of(event):
    return int(re.search(r"waited in (\d+)", event.messages[-1]["content"])[1])


def test_an_ordered_arena_plays_the_same_episodes_in_the_same_order(cluster):
    def starts(arena):
        return (Start(task % 5, task, group=task // 5) for task in range(30))

    here, there = (told(played(SHIFT, waits, starts, ordered=True, **how)) for how in ({}, {"workers": 3}))
    assert here == there
    assert len({reward for _, _, reward, _, _ in here}) == 2, "one result only: nothing was compared"


def test_harnesses_run_in_the_workers_and_play_the_same_episodes(cluster, monkeypatch):
    # What an earlier test registered is gone, so the module must be imported again.
    monkeypatch.delitem(sys.modules, "ray_worlds", raising=False)

    def starts(arena):
        return (Start(task, task) for task in range(12))

    hops = "ray_worlds:test/HostedHops-v0"
    here, there = (
        sorted(told(played(hops, palaestra.demonstrator("palaestra/TwoHop-v0"), starts, **how)), key=str)
        for how in ({}, {"workers": 2})
    )
    assert here == there
    assert {turns for *_, turns in there} == {3}


def test_a_game_is_played_whole_by_one_worker(cluster):
    game = "palaestra/negotiation_v0"

    def starts(arena):
        return (Start(task, task, seat=seat) for task in range(9) for seat in arena.seats)

    here, there = (played(game, palaestra.demonstrator(game), starts, **how) for how in ({}, {"workers": 2}))
    assert len(there) == 18

    def key(episode):
        return episode.start.key[1:]

    assert sorted(there, key=key) == sorted(here, key=key)


def test_many_slots_are_played_by_all_workers_and_the_slowest_holds_up_nobody(shift):
    arena = begun(shift(64, workers=3))
    arena.send({slot: call("wait", seconds=20 if slot == 5 else 0.01) for slot in range(64)})
    told = heard(arena, 63)
    assert 5 not in told
    assert len({pid_of(event) for event in told.values()}) == 3
    assert not arena.recv(1, 0.05)


@pytest.mark.parametrize("thinking", [False, True], ids=["as a tool runs", "as the agent thinks"])
def test_a_killed_worker_breaks_its_own_episodes_alone_and_another_takes_its_place(shift, thinking):
    arena = begun(shift(4))
    arena.send(dict.fromkeys(range(4), WAIT))
    of = {slot: pid_of(event) for slot, event in heard(arena, 4).items()}
    lost = {slot for slot in of if of[slot] == of[0]}
    assert len(lost) == 2
    if thinking:
        os.kill(of[0], signal.SIGKILL)
        arena.send(dict.fromkeys(range(4), WAIT))
    else:
        arena.send({slot: call("stop", signal_name="SIGKILL") if slot == 0 else WAIT for slot in of})
    events = heard(arena, 4)
    for slot, event in events.items():
        if slot in lost:
            assert (event.ending, event.reward) == (Ending.BROKEN, None)
            assert "rollout worker" in event.fault and "is gone" in event.fault
            assert event.attempt.turns == 2 and event.attempt.task.prompt.startswith("Wait for")
        else:
            assert event.ending is None
    for _ in range(2):  # At first the other worker plays, later the new one too.
        for slot in lost:
            arena.begin(slot, Start(9, 9 + slot))
        assert all(event.ending is None for event in heard(arena, len(lost)).values())
        assert soon(lambda: arena.recv(1, 0.01) or all(worker.facts for worker in arena._workers) or hears(arena))


def hears(arena):
    arena._hear(time.monotonic() + 0.01)


def test_play_tries_again_what_a_killed_worker_has_broken(cluster, tmp_path):
    once = str(tmp_path / "killed")

    def rule(messages, rng):
        kills = messages[-1]["role"] == "user" and rng.integers(4) == 0
        return call("stop", signal_name="SIGKILL", once=once) if kills else "done"

    episodes = played(SHIFT, rule, lambda arena: (Start(task, task) for task in range(24)), workers=2)
    assert os.path.exists(once)
    assert [episode.ending for episode in episodes] == [Ending.ANSWERED] * 24


def test_a_worker_that_is_silent_is_given_up(shift, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 20.0)  # Before the first call for news: each has a deadline.
    monkeypatch.setattr(ray_cluster, "_POLL_SECONDS", 1.0)
    arena = begun(shift(2))
    arena.send({0: call("stop", signal_name="SIGSTOP"), 1: "done"})
    events = heard(arena, 2)
    assert (events[0].ending, events[1].ending) == (Ending.BROKEN, Ending.ANSWERED)
    assert "not answered" in events[0].fault


def test_a_discarded_episode_is_never_heard_of_again(shift):
    arena = begun(shift(2))
    for seed in range(10, 40):
        arena.send({0: WAIT, 1: "done"})
        arena.recv(1, 0.003 * (seed % 9))
        for slot in range(2):
            arena.begin(slot, Start(seed, seed))
        events = heard(arena, 2)
        assert [event.start.seed for event in events.values()] == [seed, seed]
        assert all(event.ending is None and len(event.messages) > 0 for event in events.values())


def test_what_goes_wrong_at_a_worker_is_an_error_here(shift):
    arena = shift(2)
    arena.begin(0, Start(-1, 0))
    arena.begin(1, Start(0, 0))
    with pytest.raises(UsageError, match="task"):
        arena.recv(2, PATIENCE)
    assert arena.recv(1, PATIENCE)[0].slot == 1
    with pytest.raises(UsageError, match="slot 0 is"):
        arena.send({0: "done"})
    unsendable = begun(shift(1, workers=1, env_id="ray_worlds:test/Unsendable-v0"))
    unsendable.send({0: "done"})
    with pytest.raises(palaestra.EnvironmentDefect, match=r"cannot be sent.*pickle"):
        unsendable.recv(1, PATIENCE)


def test_an_environment_that_a_worker_does_not_know_is_named(shift):
    palaestra.register("test/OnlyHere-v0", "ray_worlds:Shift")
    with pytest.raises(UsageError, match=r"rollout worker 0: no environment is registered as 'test/OnlyHere-v0'"):
        shift(1, env_id="test/OnlyHere-v0")


def test_a_cluster_that_is_not_there_is_refused_at_once():
    said = joins("127.0.0.1:1")
    assert "UsageError: no Ray cluster answers at '127.0.0.1:1'" in said


def test_a_cluster_that_was_joined_stays(cluster):
    assert joins(cluster.get_runtime_context().gcs_address) == ""
    assert cluster.get(cluster.put(1)) == 1


def joins(address):
    """What another process says that opens and closes an arena of the cluster at an address."""
    program = f"import palaestra; palaestra.arena('palaestra/TwoHop-v0', 2, workers=1, ray_address={address!r}).close()"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False).stderr
