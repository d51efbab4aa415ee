"""ToolVectorEnv: many slots at once, every answer through recv, and no slot harmed by another."""

import threading

import gymnasium
import numpy as np
import pytest
from driven import becomes, begun, call, refused
from gymnasium.vector import AutoresetMode

import palaestra
from palaestra import Arena, Ending, EnvironmentDefect, Start, UsageError
from palaestra.envs import ToolVectorEnv


def test_the_registry_opens_an_arena_of_what_is_an_author(arena, worlds):
    opened = arena()
    assert isinstance(opened, ToolVectorEnv)
    assert isinstance(opened, Arena)
    assert (opened.slots, opened.name, opened.task_count) == (4, "test/Kitchen-v0", 2**31)
    assert opened.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert not opened.ordered
    assert arena("test/Inline-v0").ordered
    palaestra.register("test/NotOurs-v0", "worlds:NotOurs")
    with pytest.raises(EnvironmentDefect, match="no subclass of ToolEnv"):
        arena("test/NotOurs-v0")
    with pytest.raises(UsageError, match=r"expected an object of a ToolEnv class, such as ToolVectorEnv\(Boxes\(\)\)"):
        ToolVectorEnv(worlds.Kitchen, 2)


def test_calls_of_all_slots_run_at_once_and_results_keep_call_order(arena, worlds):
    opened = begun(arena(worlds.Meeting, 8))
    worlds.Meeting.size = 8
    for met in (worlds.Meeting.inside, worlds.Meeting.left):
        met.clear()
    opened.send(dict.fromkeys(range(8), call("gather") + call("stand")))
    events = opened.recv(8)
    assert [event.ending for event in events] == [None] * 8, "they wait for each other"
    assert [[message["content"] for message in event.messages] for event in events] == [["a", "b"]] * 8


def test_a_fast_slot_does_not_wait_for_a_slow_one(arena, worlds):
    opened = begun(arena(slots=2))
    opened.send({0: call("stay", name="slow"), 1: call("add", a=1)})
    assert [event.slot for event in opened.recv(1, timeout=60)] == [1]
    opened.send({1: "yes"})
    (event,) = opened.recv(1, timeout=60)
    assert (event.slot, event.ending) == (1, Ending.ANSWERED)
    assert opened.recv(1, timeout=0.01) == []
    worlds.gate.set()
    assert [event.slot for event in opened.recv(1)] == [0]
    assert opened.recv(1) == []  # nothing is outstanding: no wait


def test_ordered_is_a_barrier_in_slot_order(arena, worlds):
    opened = begun(arena(slots=3, ordered=True))
    opened.send({2: call("add", a=1), 0: call("stay", name="slow"), 1: "yes"})
    assert opened.recv(1, timeout=0.02) == []
    worlds.gate.set()
    assert [event.slot for event in opened.recv(1)] == [0, 1, 2]


def test_threads_are_bounded(arena, worlds):
    opened = begun(arena(slots=4, max_workers=2))
    before = threading.active_count()
    opened.send({slot: call("stay", name=str(slot)) for slot in range(4)})
    assert becomes(lambda: len(opened._jobs.runner._crew._running) == 2)
    assert opened.recv(1, timeout=0.01) == []
    assert threading.active_count() <= before + 2
    worlds.gate.set()
    assert len(opened.recv(4)) == 4


@pytest.mark.parametrize("name", ["hang", "doze"])
def test_a_deadline_breaks_one_slot_and_not_its_neighbours(arena, name, worlds):
    opened = begun(arena(slots=3, max_workers=1))
    opened.send({1: call(name), 0: call("add", a=1)})
    events = {event.slot: event for event in opened.recv(2, timeout=60)}
    broken = events[1]
    assert (broken.ending, broken.reward, broken.parts) == (Ending.BROKEN, None, {})
    assert broken.fault == f"test/Kitchen-v0 slot 1: {name}() gave no result in 0.2 s"
    # The only worker hangs; another took its place, and the late result reaches nobody.
    opened.begin(1, Start(task=0, seed=9))
    opened.send({2: call("wait", seconds=0.0, name="on")})
    worlds.gate.set()
    assert {event.slot for event in opened.recv(2, timeout=60)} == {1, 2}
    opened.send({1: "yes"})
    assert opened.recv(1, timeout=60)[0].ending is Ending.ANSWERED


def test_begin_discards_what_runs_without_a_reward(arena, worlds):
    opened = begun(arena(slots=2))
    opened.send({0: call("stay", name="late")})
    assert becomes(lambda: opened._jobs.runner._crew._running)
    opened.begin(0, Start(task=7, seed=70))
    opened.begin(1, Start(task=8, seed=80))
    events = opened.recv(2)
    assert [(event.start.task, event.ending) for event in events] == [(7, None), (8, None)]
    opened.send({0: call("add", a=1)})
    assert opened.recv(1, timeout=60)[0].messages[0]["content"] == "2"
    assert opened._jobs.runner._crew._lost == 1
    worlds.gate.set()
    assert becomes(lambda: not opened._jobs.runner._crew._lost)  # Its thread is back, so its result has come.
    opened.send({1: call("wait", seconds=0.0, name="on")})
    assert [event.slot for event in opened.recv(1)] == [1]


def test_misuse_is_named_and_sends_nothing(arena):
    opened = begun(arena(slots=2))

    refused("slot 2 does not exist", opened.send, {0: "yes", 2: "yes"})
    opened.send({0: "yes"})
    refused("call recv", opened.send, {0: "yes"})
    assert len(opened.recv()) == 1
    refused("begin one", opened.send, {0: "yes"})
    refused("begin one", opened.finish, 0, Ending.LENGTH_LIMIT)
    refused("expected str", opened.send, {1: None})
    refused("at least 1", lambda: arena(slots=0))
    refused("does not exist", opened.begin, -1, Start(0, 0))
    opened.close()
    for use in (lambda: opened.send({1: "yes"}), lambda: opened.begin(0, Start(0, 0)), lambda: opened.reset(seed=1)):
        refused("closed with its environment; make a new one", use)
    assert opened.recv() == []


@pytest.mark.parametrize("slots", [1, 3])
def test_an_info_of_a_vector_says_key_by_key_what_that_of_one_environment_says(slots):
    one, many = gymnasium.make("test/Inline-v0").unwrapped, gymnasium.make_vec("test/Inline-v0", num_envs=slots)
    said = [(one.reset(options={"task": 4})[1], many.reset(options={"tasks": [4] * slots})[1])]
    for turn in (one.call("nothing"), "An answer."):
        said.append((one.step(turn)[4], many.step([turn] * slots)[4]))
    for single, infos in said:
        assert set(infos) == {*single, *(f"_{key}" for key in single)}
        parts = infos.pop("parts")
        assert {name: parts[name][-1] for name in single["parts"]} == single.pop("parts")
        assert {key: infos[key][-1] for key in single} == single
    many.close()


def test_reset_picks_slots_and_tasks_and_leaves_the_options_alone():
    envs = gymnasium.make_vec("test/Inline-v0", num_envs=3)
    first, _ = envs.reset(seed=[5, 6, 7])
    single = gymnasium.make("test/Inline-v0").unwrapped
    assert single.reset(seed=6)[0] == first[1]
    options = {"reset_mask": np.array([False, True, False]), "tasks": [0, 4, 0]}
    observations, infos = envs.reset(seed=9, options=options)
    assert set(options) == {"reset_mask", "tasks"}
    assert observations == ("", single.reset(options={"task": 4})[0], "")
    assert infos["task"].tolist() == [0, 4, 0]
    assert infos["_task"].tolist() == [False, True, False]
    assert infos["task"].dtype == infos["turn"].dtype == np.int64
    assert infos["parts"]["success"].dtype == float
    for wrong in ({"seed": [1]}, {"options": {"reset_mask": [True]}}, {"options": {"reset_mask": [True] * 4}}):
        with pytest.raises(UsageError, match="one per slot"):
            envs.reset(**wrong)
    with pytest.raises(UsageError, match="3 actions"):
        envs.step("yes")
    envs.close()
    envs.close()
