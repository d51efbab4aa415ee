"""ToolVectorEnv: many slots at once, every answer through recv, and no slot harmed by another."""

import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import palaestra
from palaestra import Arena, Ending, EnvironmentDefect, Start, UsageError
from palaestra.envs import ToolEnv, ToolVectorEnv
from palaestra.formats import ParsedCall, hermes


@pytest.fixture
def arena():
    """Open an arena by id, closed after the test."""
    made = []

    def open_arena(env_id="test/Kitchen-v0", slots=4, **kwargs):
        made.append(palaestra.arena(env_id, slots, **kwargs))
        return made[-1]

    yield open_arena
    for one in made:
        one.close()
        one.close()


def begun(arena):
    for slot in range(arena.slots):
        arena.begin(slot, Start(task=slot, seed=slot))
    events = arena.recv(arena.slots)
    assert [event.slot for event in events] == list(range(arena.slots))
    return arena


def becomes(found):
    """Wait until this is so; whether it is."""
    until = time.monotonic() + 60
    while not found() and time.monotonic() < until:
        time.sleep(0.005)
    return found()


def call(arena, tool_name, /, **arguments):
    return hermes.render([ParsedCall(tool_name, arguments)])


def test_the_registry_opens_an_arena(arena):
    opened = arena()
    assert isinstance(opened, ToolVectorEnv)
    assert isinstance(opened, Arena)
    assert (opened.slots, opened.name, opened.task_count) == (4, "test/Kitchen-v0", 2**31)
    assert opened.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert not opened.ordered
    assert arena("test/Inline-v0").ordered


def test_what_is_no_author_is_refused(worlds):
    palaestra.register("test/NotOurs-v0", "worlds:NotOurs")
    with pytest.raises(EnvironmentDefect, match="no subclass of ToolEnv"):
        palaestra.arena("test/NotOurs-v0", 2)
    gymnasium.registry.pop("test/NotOurs-v0")
    with pytest.raises(UsageError, match=r"expected an object of a ToolEnv class, such as ToolVectorEnv\(Boxes\(\)\)"):
        ToolVectorEnv(worlds.Kitchen, 2)


def test_calls_of_all_slots_run_at_once_and_results_keep_call_order(worlds):
    opened = begun(ToolVectorEnv(worlds.Meeting(), 8))
    worlds.Meeting.size = 8
    for met in (worlds.Meeting.inside, worlds.Meeting.left):
        met.clear()
    opened.send(dict.fromkeys(range(8), call(opened, "gather") + call(opened, "stand")))
    events = opened.recv(8)
    opened.close()
    assert [event.ending for event in events] == [None] * 8, "they wait for each other"
    assert [[message["content"] for message in event.messages] for event in events] == [["a", "b"]] * 8


def test_a_fast_slot_does_not_wait_for_a_slow_one(arena, worlds):
    opened = begun(arena(slots=2))
    opened.send({0: call(opened, "stay", name="slow"), 1: call(opened, "add", a=1)})
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
    opened.send({2: call(opened, "add", a=1), 0: call(opened, "stay", name="slow"), 1: "yes"})
    assert opened.recv(1, timeout=0.02) == []
    worlds.gate.set()
    assert [event.slot for event in opened.recv(1)] == [0, 1, 2]


def test_threads_are_bounded(arena, worlds):
    opened = begun(arena(slots=4, max_workers=2))
    before = threading.active_count()
    opened.send({slot: call(opened, "stay", name=str(slot)) for slot in range(4)})
    assert becomes(lambda: len(opened._runner._crew._running) == 2)
    assert opened.recv(1, timeout=0.01) == []
    assert threading.active_count() <= before + 2
    worlds.gate.set()
    assert len(opened.recv(4)) == 4


@pytest.mark.parametrize("name", ["hang", "doze"])
def test_a_deadline_breaks_one_slot_and_not_its_neighbours(arena, name, worlds):
    opened = begun(arena(slots=3, max_workers=1))
    opened.send({1: call(opened, name), 0: call(opened, "add", a=1)})
    events = {event.slot: event for event in opened.recv(2, timeout=60)}
    broken = events[1]
    assert (broken.ending, broken.reward, broken.parts) == (Ending.BROKEN, None, {})
    assert broken.fault == f"test/Kitchen-v0 slot 1: {name}() gave no result in 0.2 s"
    # The only worker hangs; another took its place, and the late result reaches nobody.
    opened.begin(1, Start(task=0, seed=9))
    opened.send({2: call(opened, "wait", seconds=0.0, name="on")})
    worlds.gate.set()
    assert {event.slot for event in opened.recv(2, timeout=60)} == {1, 2}
    opened.send({1: "yes"})
    assert opened.recv(1, timeout=60)[0].ending is Ending.ANSWERED


def test_broken_tools_and_starts_are_events(arena):
    opened = begun(arena())
    opened.send({0: call(opened, "unplugged")})
    (event,) = opened.recv(1)
    assert (event.ending, event.reward) == (Ending.BROKEN, None)
    assert "the server is gone" in event.fault
    unstartable = arena("test/Unstartable-v0", 2)
    unstartable.begin(0, Start(task=13, seed=0))
    (event,) = unstartable.recv()
    assert (event.ending, event.reward) == (Ending.BROKEN, None)
    unstartable.begin(0, Start(task=12, seed=0))
    assert unstartable.recv()[0].ending is None


def test_begin_discards_what_runs_without_a_reward(arena, worlds):
    opened = begun(arena(slots=2))
    opened.send({0: call(opened, "stay", name="late")})
    assert becomes(lambda: opened._runner._crew._running)
    opened.begin(0, Start(task=7, seed=70))
    opened.begin(1, Start(task=8, seed=80))
    events = opened.recv(2)
    assert [(event.start.task, event.ending) for event in events] == [(7, None), (8, None)]
    opened.send({0: call(opened, "add", a=1)})
    assert opened.recv(1, timeout=60)[0].messages[0]["content"] == "2"
    assert opened._runner._crew._lost == 1
    worlds.gate.set()
    assert becomes(lambda: not opened._runner._crew._lost)  # Its thread is back, so its result has come.
    opened.send({1: call(opened, "wait", seconds=0.0, name="on")})
    assert [event.slot for event in opened.recv(1)] == [1]


def test_finish_answers_through_recv(arena):
    opened = begun(arena())
    opened.finish(2, Ending.LENGTH_LIMIT, "the answer is y")
    (event,) = opened.recv()
    assert (event.slot, event.ending, event.parts["success"]) == (2, Ending.LENGTH_LIMIT, 0.0)
    assert event.attempt.messages[-1]["content"] == "the answer is y"


def test_misuse_is_named_and_sends_nothing(arena):
    opened = begun(arena(slots=2))
    with pytest.raises(UsageError, match="slot 2 does not exist"):
        opened.send({0: "yes", 2: "yes"})
    opened.send({0: "yes"})
    with pytest.raises(UsageError, match="call recv"):
        opened.send({0: "yes"})
    assert len(opened.recv()) == 1
    with pytest.raises(UsageError, match="begin one"):
        opened.send({0: "yes"})
    with pytest.raises(UsageError, match="begin one"):
        opened.finish(0, Ending.LENGTH_LIMIT)
    with pytest.raises(UsageError, match="expected str"):
        opened.send({1: None})
    with pytest.raises(UsageError, match="at least 1"):
        arena(slots=0)
    with pytest.raises(UsageError, match="does not exist"):
        opened.begin(-1, Start(0, 0))


def test_a_defect_in_one_reward_loses_no_other_event():
    class Odd(ToolEnv):
        def task_set(self, split):
            return [palaestra.Task(prompt=f"{number}") for number in range(3)]

        def reward(self, attempt):
            return 1 / int(attempt.task.prompt)

    opened = begun(ToolVectorEnv(Odd(), 3))
    opened.send(dict.fromkeys((0, 1, 2), "x"))
    with pytest.raises(ZeroDivisionError):
        opened.recv()
    assert [event.slot for event in opened.recv()] == [1, 2]
    opened.close()


@pytest.mark.parametrize("env_id", [f"palaestra/{name}-v0" for name in ("Arithmetic", "DataTable", "TwoHop")])
def test_gymnasium_loop_with_statistics(env_id):
    envs = RecordEpisodeStatistics(gymnasium.make_vec(env_id, num_envs=3))
    play = palaestra.demonstrator(env_id)
    rng = np.random.default_rng(0)
    observations, infos = envs.reset(seed=1)
    assert observations in envs.observation_space
    said = [list(messages) for messages in infos["messages"]]
    running = np.ones(3, bool)
    won = 0.0
    for _ in range(6):
        actions = [play(said[slot], rng) if running[slot] else None for slot in range(3)]
        _, rewards, terminated, truncated, infos = envs.step(actions)
        won += rewards.sum()
        for slot in np.flatnonzero(running):
            said[slot] += [{"role": "assistant", "content": actions[slot]}, *infos["messages"][slot]]
        assert infos["_turn"].tolist() == running.tolist()
        running &= ~(terminated | truncated)
        if not running.any():
            break
    assert won == 3
    envs.close()


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


def test_sync_mode_works_too():
    envs = gymnasium.make_vec("palaestra/TwoHop-v0", num_envs=2, vectorization_mode="sync")
    observations, _ = envs.reset(seed=0)
    assert all("was born" in text for text in observations)
    observations, *_ = envs.step(("<tool_call>{", "x"))
    assert "malformed" in observations[0]
    envs.close()


def test_closed_is_closed():
    envs = gymnasium.make_vec("test/Kitchen-v0", num_envs=2)
    begun(envs)
    envs.close()
    for use in (lambda: envs.send({0: "yes"}), lambda: envs.begin(0, Start(0, 0)), lambda: envs.reset(seed=1)):
        with pytest.raises(UsageError, match="closed with its environment; make a new one"):
            use()
    assert envs.recv() == []
    envs.close()
