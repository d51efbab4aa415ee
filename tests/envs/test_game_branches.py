"""A game is gone back to and gone on from several times; one that tells another story is refused."""

import game_worlds
import pytest

from palaestra.envs import Game, Task
from palaestra.envs.arena.driving import settle
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.core.branches import fork, put, take
from palaestra.envs.core.machine import Machine
from palaestra.episode import Start
from palaestra.errors import UsageError


class Dice(Game):
    """Asks for a throw again and again: all noise is the rounds' own. A tool counts on the game itself."""

    seats = ("a_0", "b_0")
    seat_tools = {"a_0": ("count",)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Throw {rng.integers(1000)}.", "x")

    @game_worlds.tool
    def count(self) -> str:
        self.counted += 1
        return str(self.counted)

    def rounds(self, task, rng):
        self.counted = 0
        for _ in range(3):
            yield {"a_0": f"You threw {rng.integers(10**9)}, counted {self.counted}."}
        return dict.fromkeys(self.seats, min(1.0, self.counted / 4))


def begun(author, task=0, seed=3):
    machine = Machine(spec_of(author))
    settle(machine, machine.open({seat: Start(task, seed, seat=seat) for seat in author.seats}))
    return machine


COUNT = '<tool_call>{"name": "count"}</tool_call>'


def act(machine, text):
    return settle(machine, machine.act("a_0", text))


def end(machine, *turns):
    """Take these turns of a_0; what it heard in the end, and its reward."""
    for text in turns:
        events = act(machine, text)
    return [message["content"] for message in machine.state.seats["a_0"].messages], events["a_0"].reward


def test_a_branch_is_branched_and_restored_with_its_own_noise_any_number_of_times_and_elsewhere():
    game = begun(Dice())
    act(game, COUNT)
    (child,) = fork(game, 1)
    here = take(child)
    assert repr(here) == "<Snapshot of Dice after 1 turns>"
    first = end(child, "x", COUNT, "y", "z")
    assert first[1] == 0.5
    assert list(put(child, here)) == ["a_0"]
    act(child, "x")
    later = take(child)
    assert end(child, COUNT, "y", "z") == first
    for one, snapshot, turns in (
        (child, later, (COUNT, "y", "z")), (child, later, (COUNT, "y", "z")),
        (Machine(spec_of(Dice())), here, ("x", COUNT, "y", "z")),
    ):  # fmt: skip
        put(one, snapshot)
        assert end(one, *turns) == first
    assert end(game, "x", COUNT, "y", "z") != first


class Careless(Dice):
    """Its rounds look at a list that its tool changes."""

    def rounds(self, task, rng):
        self.lines = []
        yield {"a_0": f"{self.lines}?"}
        yield {"a_0": f"{self.lines}?"}
        return dict.fromkeys(self.seats, 0.0)

    @game_worlds.tool
    def count(self) -> str:
        self.lines.append("one")
        return "written"


def test_what_has_no_snapshot_is_refused_with_the_reason():
    game = begun(Careless())
    act(game, COUNT)
    act(game, "on")
    for use, said in (
        (lambda: take(Machine(spec_of(Dice()))), "no episode of Dice runs"),
        (
            lambda: put(game, take(game)),
            r"asked another question when its rounds were repeated.*round 2 .*let final\(\) of a Toolkit declare",
        ),
        (lambda: put(Machine(spec_of(Dice())), take(begun(Careless()))), "expected a Snapshot of Dice"),
        (lambda: fork(begun(Dice()), 0), r"fork\(0\)"),
    ):
        with pytest.raises(UsageError, match=said):
            use()
