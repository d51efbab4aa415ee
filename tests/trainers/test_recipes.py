"""The presets are those of the paper and its code: arXiv 2510.11701, sections 2.3 and 4.1."""

from dataclasses import asdict, replace

import pytest

from palaestra import ConfigError
from palaestra.trainers.recipes import RECIPES, find_recipe

CODE = {
    "overlong_cache": 4096,
    "dual_clip": 10.0,
    "importance_sampling_level": "token",
    "aggregation": "token",
    "kl_estimator": "k3",
    "tool_bonus": 0.1,
    "bonus_on_correct": False,
    "wrong_cap": -0.6,
}


def test_the_presets_are_those_of_the_paper_and_its_code():
    longest = {"overlong": True, "max_completion_length": 20_480, "beta": 0.0}
    of_sequences = {"dual_clip": None, "importance_sampling_level": "sequence", "aggregation": "sample"}
    expected = {
        "grpo-t": {"epsilon_high": 0.2, "beta": 0.001, "overlong": False, "max_completion_length": 16_384},
        "grpo-tcr": {"epsilon_high": 0.28, **longest},
        "grpo-scr": {"epsilon": 3e-4, "epsilon_high": 4e-4, **longest, **of_sequences},
    }
    for name, own in expected.items():
        assert asdict(find_recipe(name)) == {**CODE, "name": name, "epsilon": 0.2, **own}


def test_an_unknown_recipe_names_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'grpo-tcr'"):
        find_recipe("grpo-tcrr")


def test_values_that_make_no_sense_are_refused():
    wrong = {"epsilon": 1, "epsilon_high": 0, "beta": -1, "overlong_cache": 0, "dual_clip": 1.0, "kl_estimator": "k4"}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            replace(RECIPES["grpo-tcr"], **{name: value})
