"""An arena of several environments: any slot plays any of them, and none waits for another."""

import threading

import pytest

import palaestra
from palaestra import Ending, Start, UsageError
from palaestra.envs import Task, ToolEnv, tool

TWO_HOP, CALCULATOR = "palaestra/TwoHop-v0", "palaestra/Calculator-v0"
MIXED = f"{TWO_HOP}=3,{CALCULATOR}=1"


class Quick(ToolEnv):
    """Say yes."""

    def task(self, rng):
        return Task(prompt=f"Say yes {rng.integers(1000)} times.", answer="yes")

    def reward(self, attempt):
        return float(attempt.answer == "yes")


OPENED = threading.Event()


class Slow(Quick):
    """Say yes, after a long wait."""

    @tool(blocking=True)
    def wait(self) -> str:
        "Wait."
        return "done" if OPENED.wait(30) else "nobody has opened"


palaestra.register("mixed/Quick-v0", f"{__name__}:Quick")
palaestra.register("mixed/Slow-v0", f"{__name__}:Slow")


@pytest.fixture
def mixed():
    arena = palaestra.arena(MIXED, 3)
    yield arena
    arena.close()


def told(arena, slot, start):
    arena.begin(slot, start)
    (event,) = arena.recv()
    return event


def test_a_slot_plays_what_its_start_names_one_after_the_other(mixed):
    alone = {env: palaestra.arena(env, 1) for env in (TWO_HOP, CALCULATOR)}
    for seed, env in enumerate((TWO_HOP, CALCULATOR, CALCULATOR, TWO_HOP)):
        event = told(mixed, 1, Start(5, seed, env=env))
        expected = told(alone[env], 0, Start(5, seed))
        assert (event.slot, event.start.env) == (1, env)
        assert (event.messages, event.tools) == (expected.messages, expected.tools)
        if seed != 2:  # Else the running one is discarded, for one of another environment.
            mixed.finish(1, Ending.LENGTH_LIMIT)
            (ended,) = mixed.recv()
            assert ended.ending is Ending.LENGTH_LIMIT and ended.attempt.task.prompt in expected.messages[-1]["content"]
    for arena in alone.values():
        arena.close()


def test_a_start_of_no_environment_of_the_mixture_is_refused_and_frees_nothing(mixed):
    told(mixed, 0, Start(1, 1, env=TWO_HOP))
    for env in ("", "palaestra/WebNav-v0"):
        with pytest.raises(UsageError, match=f"Start.env is '{env}'; expected one of {TWO_HOP}, {CALCULATOR}"):
            mixed.begin(0, Start(1, 2, env=env))
    mixed.finish(0, Ending.LENGTH_LIMIT)
    assert mixed.recv()[0].start.seed == 1


def test_a_slow_environment_holds_up_no_other():
    arena = palaestra.arena("mixed/Quick-v0,mixed/Slow-v0", 2)
    assert not arena.ordered
    arena.begin(0, Start(0, 0, env="mixed/Slow-v0"))
    arena.begin(1, Start(0, 1, env="mixed/Quick-v0"))
    arena.recv(2)
    arena.send({0: '<tool_call>{"name": "wait", "arguments": {}}</tool_call>'})
    for seed in range(2, 12):
        arena.send({1: "yes"})
        assert arena.recv()[0].reward == 1
        arena.begin(1, Start(0, seed, env="mixed/Quick-v0"))
        assert arena.recv()[0].slot == 1
    OPENED.set()
    assert arena.recv()[0].messages[-1]["content"] == "done"
    arena.close()


def test_every_machine_is_closed_once_whatever_it_played(mixed, monkeypatch):
    from palaestra.envs.core.machine import Machine

    closings, close = [], Machine.close
    monkeypatch.setattr(Machine, "close", lambda machine: (closings.append(id(machine)), close(machine)))
    for slot, env in enumerate((TWO_HOP, CALCULATOR, CALCULATOR)):
        told(mixed, slot, Start(0, slot, env=env))
    mixed.close()
    assert len(closings) == len(set(closings)) == 3
    with pytest.raises(UsageError, match="closed"):
        mixed.begin(0, Start(0, 0, env=TWO_HOP))


def test_games_are_refused_unless_one_seat_is_chosen():
    game = "palaestra/solver_critic-v0"
    with pytest.raises(UsageError, match=r"solver_critic-v0 is a game of the seats solver_0, critic_0"):
        palaestra.arena(f"{TWO_HOP},{game}", 4)
    arena = palaestra.arena(f"{TWO_HOP},{game}", 2, **{"solver-critic.seat": "solver_0"})
    assert told(arena, 0, Start(0, 0, env=game)).messages
    arena.close()
