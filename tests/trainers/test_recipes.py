"""The presets are those of the paper and its code: arXiv 2510.11701, sections 2.3 and 4.1."""

import json

import pytest

from palaestra import ConfigError
from palaestra.cli import main
from palaestra.trainers import grpo_config, laptop_config, tiny_config
from palaestra.trainers.config.paper_runs import RUNS, run_settings
from palaestra.trainers.config.recipe_sources import SOURCES, sourced
from palaestra.trainers.config.recipes import RECIPES, find_recipe
from palaestra.trainers.validation import flat, plain

CODE = {
    "sampler.name": "uniform",
    "sampler.epochs": False,
    "shaping.name": "outcome",
    "shaping.max_completion_length": 20_480,
    "shaping.overlong_share": 0.2,
    "shaping.tool_bonus": 0.1,
    "shaping.bonus_on_correct": False,
    "shaping.outcome_range": "signed",
    "shaping.wrong_cap": -0.6,
    "shaping.overlong_counts": "all",
    "judge": None,
    "advantage.name": "group",
    "advantage.scale_rewards": "group",
    "max_advantage": None,
    "loss.name": "clip",
    "loss.epsilon": 0.2,
    "loss.epsilon_high": 0.28,
    "loss.dual_clip": 10.0,
    "loss.importance_sampling_level": "token",
    "critic": None,
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


@pytest.mark.parametrize("name", RECIPES)
def test_f08_every_value_that_a_preset_chooses_has_a_source(name):
    """All of paper 1's; of the others what their own papers are about. No source names a value that is not there."""
    values = {key: source for key, _, source in sourced(name)}
    assert set(SOURCES[name]) <= set(values)
    default = flat(plain(find_recipe("grpo-tcr")))
    chosen = [key for key, value, _ in sourced(name) if default.get(key, ...) != value]
    if name in OWN:
        assert all(values[key] for key in chosen)
    assert any(values[key] for key in values)


def test_recipes_are_printed_resolved(capsys):
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in RECIPES)
    assert main(["recipes", "reagent-u"]) == 0
    words = capsys.readouterr().out.split()
    whole = {"--recipe.sampler.max-prefix-tokens", "--play.num-generations", "5e-07"}
    assert whole <= {*words}, "whole, so that they can be copied and found; the paper's run is among them"
    assert main(["recipes", "demyagent", "--json", "-"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["loss.epsilon_high"]["value"] == 0.315
    assert "4.3" in shown["loss.epsilon_high"]["source"]
    assert main(["recipes", "demiagent"]) == 2
    assert "did you mean 'demyagent'" in capsys.readouterr().err


@pytest.mark.parametrize("name", RUNS)
def test_f08_a_recipe_is_its_papers_run_and_what_the_user_names_wins(name):
    values = flat(plain(grpo_config("x", name)))
    assert {key: values[key] for key in RUNS[name]} == {key: value for key, (value, _) in RUNS[name].items()}
    assert all(source for _, source in RUNS[name].values())
    assert grpo_config("x", name, num_generations=3).play.num_generations == 3
    if name.startswith("reagent"):
        assert run_settings(name).items() >= {"num_generations": 8, "temperature": 0.7, "learning_rate": 5e-7}.items()
        assert values["steps"] == 300


def test_a_laptop_keeps_the_papers_temperature_and_the_tiny_agent_its_own():
    laptop, tiny = laptop_config("x", "reagent-u"), tiny_config("x", "reagent-u")
    assert laptop.play.temperature == 0.7
    assert laptop.steps == laptop_config("x").steps == 10
    assert tiny.play.temperature == 1.0


def test_what_no_source_speaks_of_is_told_apart_and_the_words_of_sources_are_explained(capsys):
    assert main(["recipes", "vspo-prs"]) == 0
    shown, _, defaults = capsys.readouterr().out.partition("Defaults of which its sources say nothing: ")
    assert "--recipe.sampler.max-copies" in shown and "v1, v2: the versions of arXiv 2512.07478" in shown
    assert "inferred: no source gives the value" in shown and "paper, code:" not in shown
    assert "--recipe.aggregation token" in defaults and "--recipe.aggregation" not in shown


def test_on_the_command_line_the_recipe_brings_its_run_and_options_and_presets_win():
    from palaestra.cli.train import parse

    def parsed(*words):
        return parse(["two-hop", "--recipe", "reagent-u", *words], "palaestra train").config

    own = parsed("--model", "m", "--play.num-generations", "3", "--recipe.judge.url", "http://127.0.0.1:1")
    assert (own.play.num_generations, own.play.temperature, own.steps) == (3, 0.7, 300)
    laptop = parsed("--model", "m", "--preset", "laptop")
    assert (laptop.play.num_prompts, laptop.play.temperature, laptop.steps) == (4, 0.7, 10)
    tiny = parsed()
    assert (tiny.play.num_prompts, tiny.play.temperature, tiny.steps) == (12, 1.0, 50)
