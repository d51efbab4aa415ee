"""ToolVectorEnv under toolkits and tools that hang: every wait ends, the slow are named, and the rest goes on."""

import logging
import time

import pytest
import workshop
from driven import PATIENCE, becomes, begun, call, heard

from palaestra import Broken, Ending, Start
from palaestra.envs import TextEnv
from palaestra.envs.running.holdups import HELD_SECONDS


@pytest.fixture(autouse=True)
def lamps():
    for known in (workshop.Lamp, workshop.Loopy):
        known.gate.clear()
    workshop.Lamp.made.clear()
    workshop.Loopy.holding.clear()
    yield
    for known in (workshop.Lamp, workshop.Loopy):
        known.gate.set()


def lit(arena, slots, kind=workshop.Lit):
    """Each slot begun on the task that hangs nowhere."""
    opened = arena(kind, slots)
    for slot in range(slots):
        opened.begin(slot, Start(0, slot))
    assert [event.ending for event in opened.recv(slots, PATIENCE)] == [None] * slots
    return opened


def test_a_toolkit_that_hangs_as_it_starts_breaks_its_slot_alone(arena):
    opened = arena(workshop.Hanging, 3)
    for slot, task in enumerate((0, 1, 2)):
        opened.begin(slot, Start(task, slot))
    events = heard(opened, 3)
    assert [events[slot].ending for slot in range(3)] == [None, Ending.BROKEN, Ending.BROKEN]
    assert events[1].fault == "Hanging slot 1: a toolkit did not start: Lamp.start() gave no result in 0.3 s"
    assert "no bulb" in events[2].fault
    assert events[1].attempt.task.prompt == "hang start"
    opened.begin(1, Start(0, 9))
    assert opened.recv(1, PATIENCE)[0].ending is None


def test_what_starts_too_late_is_closed_by_the_thread_that_started_it(arena):
    opened = arena(workshop.Hanging, 1)
    opened.begin(0, Start(1, 0))
    assert becomes(lambda: workshop.Lamp.made and workshop.Lamp.made[0].log)
    (lamp,) = workshop.Lamp.made
    assert opened.recv(1, PATIENCE)[0].ending is Ending.BROKEN
    assert becomes(lambda: len(lamp.log) == 2)
    workshop.Lamp.gate.set()
    assert becomes(lambda: len(lamp.log) == 4)
    assert lamp.log == ["start", "close", "late start", "close"]


def test_a_toolkit_that_hangs_as_it_closes_costs_its_slot_the_deadline_and_no_reward(arena, caplog):
    opened = lit(arena, 2, workshop.Hanging)
    opened.send({0: call("glow", mood="hang close"), 1: call("glow")})
    assert len(opened.recv(2, PATIENCE)) == 2
    opened.send({0: "yes", 1: "no"})
    events = heard(opened, 2)
    assert [(events[slot].ending, events[slot].reward) for slot in (0, 1)] == [("answered", 1.0), ("answered", 0.0)]
    assert "Hanging slot 0: Lamp.close did not end within 0.3 s" in caplog.text
    for slot in (0, 1):
        opened.begin(slot, Start(0, 5))
    assert [event.ending for event in opened.recv(2, PATIENCE)] == [None, None]
    assert [lamp.log.count("start") for lamp in workshop.Lamp.made] == [1, 2, 1], "one is used again, one hangs"


@pytest.mark.parametrize("way", ["close", "begin", "finish", "reset"])
def test_no_way_out_of_an_episode_hangs(arena, way):
    opened = lit(arena, 2, workshop.Hanging)
    opened.send(dict.fromkeys((0, 1), call("glow", mood="hang close")))
    opened.recv(2, PATIENCE)
    started = time.monotonic()
    if way == "close":
        opened.close()
    elif way == "begin":
        opened.begin(0, Start(0, 3))
        assert opened.recv(1, PATIENCE)[0].ending is None, "what ran before closes aside"
    elif way == "finish":
        opened.finish(0, Ending.LENGTH_LIMIT)
        assert opened.recv(1, PATIENCE)[0].ending is Ending.LENGTH_LIMIT
    else:
        opened.send({0: "yes", 1: "yes"})
        heard(opened, 2)
        opened.reset(seed=0, options={"tasks": [0, 0]})
    assert time.monotonic() - started < 0.7 * PATIENCE  # It hangs for all of it.


def test_a_reward_that_raises_closes_the_toolkits_and_frees_the_slot(arena):
    opened = lit(arena, 2)
    opened.send({0: "raise", 1: "yes"})
    with pytest.raises(ZeroDivisionError):
        opened.recv(2, PATIENCE)
    assert heard(opened, 1)[1].reward == 1.0
    opened.begin(0, Start(0, 4))
    assert opened.recv(1, PATIENCE)[0].ending is None
    opened.close()
    assert all(lamp.log.count("start") == lamp.log.count("close") for lamp in workshop.Lamp.made)


def test_an_environment_by_itself_waits_for_its_toolkits_no_longer_than_a_slot(arena, caplog):
    env = TextEnv(workshop.Hanging())
    with pytest.raises(
        Broken, match=r"Hanging slot 0: a toolkit did not start: Lamp.start\(\) gave no result in 0.3 s"
    ):
        env.reset(options={"task": 1})
    env.reset(options={"task": 0})
    env.step(env.call("glow", mood="hang close"))
    started = time.monotonic()
    _, reward, terminated, *_ = env.step("yes")
    assert (reward, terminated) == (1.0, True)
    assert "Lamp.close did not end within 0.3 s" in caplog.text
    env.reset(options={"task": 0})
    assert len(workshop.Lamp.made) == 3
    assert time.monotonic() - started < 0.7 * PATIENCE  # It hangs for all of it.
    env.close()


def test_a_stalled_call_is_reported_by_name_and_warned_about(arena, caplog):
    opened = begun(arena(workshop.Loopy, 2))
    assert opened.stalls() == []
    opened.send({1: call("slow", secret="x" * 500)})
    assert opened.stalls() == []
    (work,) = opened._tables[1].out[0].works
    work.started_at -= 31.0  # Half of its minute has passed.
    assert opened.recv(1, 0.01) == []
    (stall,) = opened.stalls()
    assert (stall.env_id, stall.slot, stall.tool, stall.timeout) == ("Loopy", 1, "slow", 60.0)
    assert stall.seconds > 30
    assert stall.arguments == {"secret": "x" * 500}
    assert len(str(stall)) < 350
    assert "Loopy slot 1: slow(secret='xxx" in caplog.text
    workshop.Loopy.gate.set()
    assert opened.recv(1, PATIENCE)[0].slot == 1
    assert opened.stalls(0.0) == []


def test_what_holds_the_loop_is_named_once(arena, caplog):
    opened = begun(arena(workshop.Loopy, 2))
    opened.send({0: call("pinch", seconds=0.06), 1: call("hold")})
    assert becomes(lambda: "Loopy slot 1: hold has held the event loop" in caplog.text)
    time.sleep(2 * HELD_SECONDS)
    workshop.Loopy.gate.set()
    opened.recv(2, PATIENCE)
    (record,) = [record for record in caplog.records if "held the event loop" in record.message]
    assert record.levelno == logging.WARNING


def held_for_long():
    """Until a tool has had the loop for longer than any may: from then on it is found whenever its call is late."""
    assert workshop.Loopy.holding.wait(PATIENCE)
    time.sleep(1.5 * HELD_SECONDS)


def test_a_loop_that_is_held_is_replaced_and_serves_its_other_calls_before_it_ends(arena, caplog):
    opened = begun(arena(workshop.Loopy, 3))
    opened.send({0: call("nap", seconds=0.3), 1: call("grab")})
    held_for_long()
    assert [(event.slot, event.ending) for event in opened.recv(1, PATIENCE)] == [(1, Ending.BROKEN)]
    assert "is held by Loopy slot 1: grab" in caplog.text
    held = opened._jobs.runner._held_loops
    assert [loop.runs for loop in held] == [True]
    opened.send({2: call("nap")})
    assert [event.slot for event in opened.recv(1, PATIENCE)] == [2]
    workshop.Loopy.gate.set()
    (event,) = opened.recv(1, PATIENCE)
    assert (event.slot, event.messages[0]["content"]) == (0, "slept")
    assert becomes(lambda: not held[0].runs)
