"""The presets are those of the paper and its code: arXiv 2510.11701, sections 2.3 and 4.1."""

import pytest

from palaestra import ConfigError
from palaestra.trainers.checked import flat, plain
from palaestra.trainers.recipes import find_recipe

CODE = {
    "sampler.name": "uniform",
    "shaping.max_completion_length": 20_480,
    "shaping.overlong_share": 0.2,
    "shaping.tool_bonus": 0.1,
    "shaping.bonus_on_correct": False,
    "shaping.wrong_cap": -0.6,
    "advantage.name": "group",
    "advantage.scale_rewards": "group",
    "loss.name": "clip",
    "loss.epsilon": 0.2,
    "loss.epsilon_high": 0.28,
    "loss.dual_clip": 10.0,
    "loss.importance_sampling_level": "token",
    "correction": None,
    "kl.beta": 0.0,
    "kl.kl_estimator": "k3",
    "kl.kl_in_reward": False,
    "aggregation": "token",
    "entropy_coef": 0.0,
}
OWN = {
    "grpo-tcr": {},
    "grpo-t": {
        "shaping.max_completion_length": 16_384,
        "shaping.overlong_share": None,
        "loss.epsilon_high": 0.2,
        "kl.beta": 0.001,
    },
    "grpo-scr": {
        "loss.epsilon": 3e-4,
        "loss.epsilon_high": 4e-4,
        "loss.dual_clip": None,
        "loss.importance_sampling_level": "sequence",
        "aggregation": "sample",
    },
    "demyagent": {"loss.epsilon_high": 0.315},
}


@pytest.mark.parametrize("name", OWN)
def test_the_presets_are_those_of_the_paper_and_its_code(name):
    assert flat(plain(find_recipe(name))) == {**CODE, "recipe_name": name, **OWN[name]}


def test_an_unknown_recipe_names_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'grpo-tcr'"):
        find_recipe("grpo-tcrr")
