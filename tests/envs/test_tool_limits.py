"""Limits of a tool hold over all environments, cost no deadline, and nobody who left keeps a place."""

import time

import pytest
import workshop
from driven import begun, call

from palaestra import Ending, Start
from palaestra.envs.core.tool import collect
from palaestra.envs.running import concurrency_limits


@pytest.fixture(autouse=True)
def fresh():
    workshop.reset()


@pytest.fixture
def limited(arena):
    """Slots of an environment whose tools let few in, each with an episode."""
    return lambda slots, kind=workshop.Limited: begun(arena(kind, slots))


@pytest.mark.parametrize(("name", "most"), [("narrow", 2), ("gate", 3)])
def test_concurrency_is_shared_by_all_environments(limited, name, most):
    first, second = limited(6), limited(6, type("Heir", (workshop.Limited,), {}))
    for one in (first, second):
        one.send(dict.fromkeys(range(6), call(name) * 2))
    for one in (first, second):
        assert {tuple(m["content"] for m in event.messages) for event in one.recv(6, 60)} == {("out", "out")}
    assert workshop.most == most
    assert len(workshop.begun) == 24


def kept(since, times):
    """Starts may come late on a busy machine, and then close together: what is certain is that none comes too early."""
    return all(begun - since >= at / 50 - 0.001 for at, begun in enumerate(sorted(times)))


@pytest.mark.parametrize("name", ["paced", "paced_thread"])
def test_the_rate_is_kept_over_all_environments(limited, name):
    opened = limited(10)
    sent = time.monotonic()
    opened.send(dict.fromkeys(range(10), call(name)))
    assert len(opened.recv(10, 60)) == 10 == len(workshop.begun)
    assert kept(sent, workshop.begun)


def test_what_fell_due_while_the_machine_stood_still_does_not_begin_at_once(monkeypatch):
    now = 100.0
    monkeypatch.setattr(concurrency_limits.time, "monotonic", lambda: now)
    limit = concurrency_limits.Limit(None, 10.0)
    assert [limit.delay() for _ in range(5)] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    now = 100.1
    assert limit.belated() == pytest.approx(0.0)
    now = 105.0
    assert [limit.belated() for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])
    now = 200.0
    assert [limit.delay() for _ in range(2)] == pytest.approx([0.0, 0.1])
    now = 200.1
    assert limit.belated() == pytest.approx(0.0)


def test_a_loop_that_is_held_lets_no_more_begin_than_the_rate(limited):
    opened = limited(6)
    freed = []

    def hold():
        time.sleep(0.2)
        freed.append(time.monotonic())

    opened.send(dict.fromkeys(range(6), call("paced")))
    while not workshop.begun:
        time.sleep(0.001)
    opened._jobs.runner._open_loop().loop.call_soon_threadsafe(hold)  # Meanwhile all the others fall due.
    assert len(opened.recv(6, 60)) == 6
    after = sorted(begun for begun in workshop.begun if begun >= freed[0])
    assert kept(freed[0], after[1:])  # The first call may have been admitted just before, and have waited for the loop.


def test_waiting_for_a_place_is_not_held_against_the_call(limited):
    opened = limited(4)
    opened.send(dict.fromkeys(range(4), call("held")))  # Its deadline is a minute.
    works = [opened._tables[slot].out[0].works[0] for slot in range(4)]
    for work in works:
        work.requested_at -= 100
    for inside in range(4):
        assert [work.started_at is None for work in works] == [at > inside for at in range(4)]
        assert opened.recv(1, 0.01) == [], "its minute has only begun"
        workshop.tickets.append("out")
        assert [(event.slot, event.ending) for event in opened.recv(1, 60)] == [(inside, None)]


def test_calls_that_are_given_up_free_their_places(limited):
    opened = limited(4)
    opened.send(dict.fromkeys(range(4), call("closed")))
    waiting = [stall for stall in opened.stalls(-1.0) if stall.waits]
    assert [stall.waits for stall in waiting] == ["its limit"] * 3
    opened.begin(3, Start(task=3, seed=9))  # In line, and dropped there.
    ended = []
    until = time.monotonic() + 60
    while len(ended) < 4 and time.monotonic() < until:
        ended += opened.recv(1, 5)
    assert sorted((event.slot, event.ending) for event in ended) == [
        (0, Ending.BROKEN), (1, Ending.BROKEN), (2, Ending.BROKEN), (3, None)
    ]  # fmt: skip
    limit = collect(workshop.Limited)["closed"].conditions.limit
    assert (limit._inside, list(limit._queue)) == (0, [])


def test_closing_an_environment_lets_others_in(limited):
    first, second = limited(1), limited(1)
    first.send({0: call("gate", seconds=60.0) * 3})
    second.send({0: call("gate")})
    assert second.recv(1, 0.05) == []
    first.close()
    assert [message["content"] for message in second.recv(1, 60)[0].messages] == ["out"]
