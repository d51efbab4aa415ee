"""What a run can be told is checked before anything is played."""

import json
from dataclasses import asdict, fields

import pytest

from palaestra import ConfigError
from palaestra.trainers.config import GRPOConfig, config_from, tiny_config


@pytest.mark.parametrize(
    ("typo", "meant"), [("learning_rat", "learning_rate"), ("num_generation", "num_generations"), ("betas", "beta")]
)
def test_an_unknown_option_names_the_closest(typo, meant):
    with pytest.raises(ConfigError, match=f"unknown option '{typo}'; did you mean '{meant}'"):
        config_from({"env_id": "x", typo: 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0, "num_generations": 1, "max_episode_tokens": 1, "max_completion_length": 0, "seed": -1},
        {"learning_rate": -1e-9, "max_grad_norm": float("nan"), "temperature": float("inf"), "adam_beta2": 1.0},
        {"max_broken_share": 1.5, "imitation_gate": 0, "lr_schedule": "cosine"},
        {"env_options": "tasks=x"},
        {"env_options": [1], "slots": "3", "eval_tasks": True},
        {"recipe": "grpo", "epsilon": 1.5, "epsilon_high": 0.0},
    ],
)
def test_a_bad_value_is_refused_by_name_where_the_config_is_made(wrong):
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            tiny_config("palaestra/TwoHop-v0", **{name: value})
    with pytest.raises(ConfigError, match="env_options has 'split'"):
        tiny_config("palaestra/TwoHop-v0", env_options=("split=eval",))


@pytest.mark.parametrize("config", [tiny_config("a/B-v0", seed=3, beta=0.5, epsilon_high=0.315), GRPOConfig("a/B-v0")])
def test_a_saved_config_reads_back(config, tmp_path):
    config.save(tmp_path / "config.json")
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop("algorithm") == asdict(config.algorithm)
    assert config_from(saved) == config


def test_replacements_reach_the_algorithm_and_nothing_else_changes():
    plain, changed = GRPOConfig("x").algorithm, GRPOConfig("x", epsilon_high=0.315, beta=0.01).algorithm
    assert (changed.epsilon_high, changed.beta) == (0.315, 0.01)
    same = {field.name for field in fields(plain)} - {"epsilon_high", "beta"}
    assert all(getattr(plain, name) == getattr(changed, name) for name in same)


def test_the_overlong_cache_shrinks_in_proportion():
    algorithm = GRPOConfig("x", max_completion_length=256).algorithm
    assert (algorithm.max_completion_length, algorithm.overlong_cache) == (256, 51)
    assert GRPOConfig("x", max_completion_length=2).algorithm.overlong_cache == 1


def test_the_longest_row_holds_a_prompt_and_the_longest_response():
    assert GRPOConfig("x").longest_row == 20_480 + 2_560
    assert GRPOConfig("x", max_episode_tokens=99).longest_row == 99


def test_zero_is_a_learning_rate():
    """A control needs it."""
    assert tiny_config("x", learning_rate=0.0).learning_rate == 0
