"""What an environment or a game declares and cannot be kept is refused when its class is made."""

import re

import numpy as np
import pytest

from palaestra import EnvironmentDefect
from palaestra.envs import Game, RewardPart, ToolEnv
from palaestra.envs.core.scoring import score


class Plain(ToolEnv):
    """As it comes."""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("deadlines", {"reward": 0}, "seconds above 0 by name"), ("deadlines", {"clsoe": 5}, "of start, reward, close"),
     ("deadlines", {"reward": float("inf")}, "seconds above 0"), ("deadlines", {"reward": "5"}, "seconds above 0"),
     ("deadlines", 5, "seconds above 0 by name"),
     ("chance", 2, "chance is 2"), ("ceiling", float("nan"), "ceiling is nan"),
     ("max_turns", 0, "max_turns is 0; expected at least 1"),
     ("max_turns", "4", "max_turns is '4'; expected at least 1, a whole number"),
     ("max_turns", 2.5, "max_turns is 2.5"), ("max_turns", True, "max_turns is True"),
     ("max_turn_calls", 0, "max_turn_calls is 0; expected at least 1"),
     ("max_result_chars", -5, "max_result_chars is -5; expected at least 1"),
     ("chance", "0.5", "chance is '0.5'"), ("ceiling", "x", "ceiling is 'x'; expected a finite number, or None"),
     ("parts", {"speed": RewardPart()}, "parts has no 'success'"),
     ("parts", {"success": 1.0}, "'success'] is 1.0; expected a RewardPart"),
     ("parts", {"success": RewardPart(weight="1")}, "of finite numbers, low <= high")],
)  # fmt: skip
def test_limits_that_make_no_sense_are_refused_when_the_class_is_made(name, value, said):
    with pytest.raises(EnvironmentDefect, match=said):
        type("Odd", (Plain,), {name: value})


def test_a_success_above_one_is_refused_and_not_declared_away():
    with pytest.raises(
        EnvironmentDefect, match=r"Plain.reward gave success = 1.5; .* \[0.0, 1.0\]: return it as a share"
    ):
        score("Plain", Plain.parts, 1.5)
    with pytest.raises(EnvironmentDefect, match=r"lies in \[0, 1\], scale it with `weight`"):
        type("Odd", (Plain,), {"parts": {"success": RewardPart(high=2.0)}})
    with pytest.raises(EnvironmentDefect, match=r"declare RewardPart\(low=..., high=...\) for 'speed'"):
        score("Plain", {"success": RewardPart(), "speed": RewardPart()}, {"success": 1, "speed": 3})


def test_a_chance_that_depends_on_the_options_is_a_property():
    class Odds(Plain):
        chance = property(lambda self: 1 / self.max_turns)

    assert Odds().chance == 1 / Plain.max_turns


def test_limits_of_numpy_are_numbers_too():
    class Drawn(Plain):
        max_turns, deadlines, chance = np.int64(3), {"reward": np.float32(5)}, np.float64(0.5)

    assert Drawn().max_turns == 3


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("max_turns", 0, "max_turns is 0; expected at least 1"), ("max_result_chars", "5", "max_result_chars is '5'"),
     ("system", "Play.", "system is 'Play.'; expected it by seat: {seat: ...}"),
     ("chance", {"one_0": 2}, "chance['one_0'] is 2"), ("ceiling", {"one_0": "x"}, "ceiling['one_0'] is 'x'")],
)  # fmt: skip
def test_limits_of_a_game_are_refused_when_its_class_is_made(name, value, said):
    with pytest.raises(EnvironmentDefect, match=re.escape(said)):
        type("Odd", (Game,), {"seats": ("one_0", "two_0"), name: value})
