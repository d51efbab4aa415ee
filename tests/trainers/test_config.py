"""What a run can be told is checked before anything is played."""

import json

import pytest

from palaestra import ConfigError
from palaestra.trainers.config.env_config import EnvConfig
from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config, tiny_config
from palaestra.trainers.config.recipes import ADVANTAGES, LOSSES, RECIPES, SAMPLERS
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.validation import changed, flat, plain

ENV = "palaestra/TwoHop-v0"


@pytest.mark.parametrize(
    ("typo", "meant"), [("learning_rat", "learning_rate"), ("num_generation", "num_generations"), ("betas", "beta")]
)
def test_an_unknown_option_names_the_closest(typo, meant):
    with pytest.raises(ConfigError, match=f"unknown option '{typo}'; did you mean '{meant}'"):
        tiny_config("x", **{typo: 1})
    with pytest.raises(ConfigError, match="unknown option 'batch_row'; did you mean 'batch_rows'"):
        tiny_sft_config(batch_row=3)
    with pytest.raises(ConfigError, match="unknown option 'epsilo'; did you mean 'epsilon'"):
        changed(tiny_config("x"), {"recipe": {"loss": {"name": "clip", "epsilo": 0.1}}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0, "num_generations": 1, "max_episode_tokens": 1, "max_completion_length": 0, "seed": -1},
        {"learning_rate": -1e-9, "max_grad_norm": float("nan"), "temperature": float("inf"), "adam_beta2": 1.0},
        {"max_broken_share": 1.5, "imitation_gate": 0, "lr_schedule": "circle", "algorithm": "sgd"},
        {"env_options": "tasks=x", "tool_rate": 0, "imitation_steps": 0},
        {"env_options": [1], "slots": "3", "eval_tasks": True, "tool_bonus": float("nan"), "overlong_share": 0},
        {"epsilon": 1.5, "epsilon_high": 0.0, "beta": -1.0, "dual_clip": 1.0, "kl_estimator": "k4"},
        {"aggregation": "word", "advantage": "groups", "importance_sampling_level": "word", "loss": "clap"},
    ],
)
def test_a_bad_value_is_refused_by_name_where_the_config_is_made(wrong):
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            tiny_config(ENV, **{name: value})
    with pytest.raises(ConfigError, match="env_options has 'split'"):
        tiny_config(ENV, env_options=("split=eval",))


def test_bad_values_of_imitation_are_refused():
    wrong = {"epochs": 0, "learning_rate": float("nan"), "matrix_learning_rate": -1, "max_grad_norm": 0.0}
    wrong |= {"max_row_tokens": 1, "warmup_share": 1.0, "adam_beta2": -0.1, "seed": -1, "algorithm": "sgd"}
    for name, value in wrong.items():
        with pytest.raises(ConfigError, match=name):
            tiny_sft_config(**{name: value})
    with pytest.raises(ConfigError, match="format"):
        tiny_sft_config(format="morse")


CONFIGS = {
    **{name: tiny_config("a/B-v0", name) for name in RECIPES},
    **{name: tiny_config("a/B-v0", advantage=name) for name in ADVANTAGES if name != "gae"},
    **{name: tiny_config("a/B-v0", loss=name) for name in LOSSES},
    "corrected": tiny_config("a/B-v0", correction={"name": "masked", "highest_weight": 3.0}),
    "changed": tiny_config("a/B-v0", seed=3, beta=0.5, epsilon_high=0.315, env_options=("hops=2",)),
    "paper": GRPOConfig(EnvConfig("a/B-v0")),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_config_reads_back_with_its_parts_by_name(name):
    config = CONFIGS[name]
    saved = json.loads(json.dumps(plain(config)))
    assert changed(GRPOConfig(EnvConfig("")), saved) == config
    assert changed(tiny_config("x", "grpo-scr", advantage="successes"), saved) == config
    parts = {"advantage": ADVANTAGES, "loss": LOSSES}
    for part, table in parts.items():
        assert table[saved["recipe"][part]["name"]] is type(getattr(config.recipe, part))
    assert SAMPLERS[saved["recipe"]["sampler"]["name"]] is type(config.recipe.sampler)


def test_a_saved_config_of_imitation_reads_back():
    for config in (SFTConfig(), tiny_sft_config(files=("a.jsonl", "b"), epochs=2, checkpoint_every=3)):
        assert changed(SFTConfig(), json.loads(json.dumps(plain(config)))) == config


def test_a_change_reaches_its_section_and_nothing_else_changes():
    before, after = GRPOConfig(EnvConfig("x")), grpo_config("x", epsilon_high=0.315, beta=0.01, num_prompts=3)
    there, now = flat(plain(before)), flat(plain(after))
    assert {name: now[name] for name in now if now[name] != there[name]} == {
        "recipe.loss.epsilon_high": 0.315,
        "recipe.kl.beta": 0.01,
        "play.num_prompts": 3,
    }


def test_the_longest_row_holds_a_prompt_and_the_longest_response():
    assert grpo_config("x").longest_row == 20_480 + 2_560
    assert grpo_config("x", max_episode_tokens=99).longest_row == 99


def test_zero_is_a_learning_rate():
    """A control needs it."""
    assert tiny_config("x", learning_rate=0.0).optimizer.learning_rate == 0


def test_the_defaults_of_imitation_are_the_papers_and_the_tiny_agent_has_its_own():
    paper = SFTConfig()
    assert (paper.epochs, paper.batch_rows, paper.max_row_tokens) == (5, 32, 32_768)
    of = paper.optimizer
    assert (of.algorithm, of.learning_rate, of.adam_beta2, of.weight_decay) == ("adamw", 5e-5, 0.95, 0.01)
    assert (of.lr_schedule, of.warmup_share, of.max_grad_norm) == ("cosine", 0.1, 1.0)
    tiny = tiny_sft_config(batch_rows=8)
    assert (tiny.optimizer.algorithm, tiny.optimizer.learning_rate) == ("muon", 4e-3)
    assert (tiny.optimizer.matrix_learning_rate, tiny.batch_rows) == (0.03, 8)


def test_a_lower_clip_that_is_wider_than_the_upper_one_is_refused():
    with pytest.raises(ConfigError, match=r"epsilon is 0.3 and epsilon_high 0.28.*--recipe.loss.epsilon-high"):
        tiny_config("palaestra/TwoHop-v0", epsilon=0.3)
    assert tiny_config("palaestra/TwoHop-v0", epsilon=0.28).recipe.loss.epsilon == 0.28
    assert tiny_config("palaestra/TwoHop-v0", "cispo").recipe.loss.epsilon == 1.0, "which has no ratio to hold back"
