"""What an author of a game gets wrong is said: in the class when it is made, in its rounds when it shows."""

import pytest
from driven import refused, seated

import palaestra
from palaestra.envs import Game, RewardPart, Task, ToolEnv
from palaestra.envs.arena.arena import LocalArena
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.checks.check import check
from palaestra.envs.core.machine import Machine
from palaestra.episode import Start
from palaestra.errors import EnvironmentDefect


def flawed(**body):
    """A game class with one flaw."""
    return type("Flawed", (Game,), {"seats": ("a_0", "b_0"), "task": lambda self, rng: Task(f"{rng.random()}"), **body})


def one_round(result=None, ask=None):
    def rounds(self, task, rng):
        yield ask or {"a_0": task.prompt}
        return result

    return rounds


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"seats": ("a_0",)}, "expected at least two"),
        ({"seats": ("a_0", "a_0")}, "expected at least two"),
        ({"seat_tools": {"c_0": ()}}, "speaks of a seat 'c_0'"),
        ({"seat_tools": {"a_0": ("gone",)}}, "names 'gone'"),
        ({"parts": {"won": RewardPart()}}, "has no 'success'"),
    ],
)
def test_a_flaw_of_the_class_is_named_when_it_is_made(body, says):
    with pytest.raises(EnvironmentDefect, match=says):
        flawed(**body)


def no_yield(self, task, rng):
    return {"a_0": 1.0, "b_0": 1.0}


async def awaited_rounds(self, task, rng):
    yield {"a_0": task.prompt}


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        (no_yield, "rounds gave dict and no generator"),
        (awaited_rounds, "rounds gave async_generator and no generator"),
        (one_round(ask=["hello"]), r"expected \{seat: text\}"),
        (
            one_round(ask={"a_0": "hello", "c_0": "hello"}),
            "asks 'c_0', and there is no such seat; seats are 'a_0', 'b_0'",
        ),
        (one_round(ask={"a_0": ""}), "expected some text"),
        (one_round({"a_0": 1.0}), "expected the reward of each"),
        (one_round({"a_0": 1.0, "b_0": float("nan")}), "finite"),
        (one_round({"a_0": 1.0, "b_0": 3.0}), "declared range"),
        (one_round(None), "expected the reward of each"),
    ],
)
def test_a_flaw_of_the_rounds_is_named_when_it_shows(rounds, says):
    game = Machine(spec_of(flawed(rounds=rounds)()))

    def play_it():
        game.open({seat: Start(0, 0, seat=seat) for seat in game.seats})
        game.act("a_0", "said")

    refused(says, play_it, error=EnvironmentDefect)


class Seatless(ToolEnv):
    def task(self, rng):
        return Task(f"{rng.random()}", answer="x")


def test_a_class_without_seats_that_is_registered_as_a_game_is_refused_by_the_id_as_it_was_written():
    palaestra.register_game("me/Seatless_v0", f"{__name__}:Seatless")
    words = "me/Seatless_v0 is registered as a game, but its class Seatless has no seats: use palaestra.register"
    refused(words, lambda: palaestra.arena("me/Seatless_v0", 1), error=EnvironmentDefect)
    refused(words, lambda: check("me/Seatless_v0"), error=EnvironmentDefect)
    assert "me/Seatless_v0" in palaestra.games()


def fails_when_told(self, task, rng):
    said = yield dict.fromkeys(self.seats, task.prompt)
    if said["a_0"] == "fail":
        raise ZeroDivisionError
    return dict.fromkeys(self.seats, 1.0)


def test_an_authors_error_reaches_the_caller_and_the_arena_goes_on():
    spec = spec_of(flawed(rounds=fails_when_told)())
    arena = LocalArena({"": lambda: Machine(spec)}, 2, name="flawed")
    seated(arena)
    arena.send({0: "fail"})
    arena.send({1: "y"})
    with pytest.raises(ZeroDivisionError):
        arena.recv()
    seated(arena)
    arena.send({0: "x", 1: "y"})
    assert [event.reward for event in arena.recv(2, 60)] == [1.0, 1.0]
