"""The options of `palaestra train`: sections, parts of a recipe, and slips of the keyboard in either."""

import json

import families
import pytest
from commands import run_in_words as run

from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import training
from palaestra.trainers.run.interrupts import Interrupted


@pytest.fixture
def begun(capsys, monkeypatch, tmp_path):
    """What `config.json` holds of a run that is stopped before its first step."""

    def stopped(*_, **__):
        raise Interrupted(2)
        yield

    def begin(*arguments):
        monkeypatch.setattr(training, "train", stopped)
        folder = tmp_path / "run"
        status, _, err = run(capsys, "train", "two-hop", "--run", folder, *arguments)
        assert status == 130, err
        return json.loads((folder / "config.json").read_text())

    return begin


def test_parts_of_the_recipe_and_their_settings_reach_the_runs_config(begun):
    config = begun("--recipe", "grpo-t", "--recipe.advantage", "successes", "--recipe.loss.epsilon-high", "0.3")
    recipe = config["recipe"]
    assert (recipe["recipe_name"], recipe["advantage"]) == ("grpo-t", {"name": "successes"})
    assert (recipe["loss"]["name"], recipe["loss"]["epsilon_high"], recipe["loss"]["dual_clip"]) == ("clip", 0.3, 10.0)
    assert recipe["kl"]["beta"] == 0.001, "the rest is the preset's"


def test_a_part_that_is_none_by_default_is_switched_on_by_its_name_and_off_again(begun):
    asked = ("--recipe.correction", "truncated", "--recipe.correction.cap", "3", "--play.max-logprob-gap", "0.2")
    config = begun(*asked)
    assert config["recipe"]["correction"] == {"name": "truncated", "cap": 3.0, "correction_level": "token"}
    assert config["play"]["max_logprob_gap"] == 0.2


def test_parts_that_need_each_other_are_chosen_together(begun):
    recipe = begun("--recipe.advantage", "gae", "--recipe.critic", "head")["recipe"]
    assert (recipe["advantage"]["name"], recipe["critic"]["name"]) == ("gae", "head")


def test_of_a_part_that_is_named_twice_the_last_counts_and_has_its_own_settings(begun):
    asked = ("--recipe.advantage=successes", "--recipe.advantage", "shuffled", "--recipe.advantage.shuffle", "3")
    assert begun(*asked)["recipe"]["advantage"] == {"name": "shuffled", "shuffle": 3}


@pytest.mark.parametrize("named", [["successes_"], ["--steps", "3"], []], ids=" ".join)
def test_a_part_that_there_is_not_is_told_what_there_is(capsys, named):
    status, _, err = run(capsys, "train", "two-hop", "--recipe.advantage", *named)
    assert status == 2
    known = "group, leave-one-out, optimal-baseline, greedy-baseline, whitened, turns, tree, gae, successes, shuffled"
    assert f"expected one of {known}, or module:name for your own" in err


def test_help_all_shows_the_options_by_section(capsys):
    status, out, _ = run(capsys, "train", "--help-all")
    assert status == 0
    assert "--recipe STR Preset of the algorithm (see" in out
    sections = ("env", "recipe", "recipe.loss", "play", "optimizer", "save", "cold-start")
    places = [out.index(f" {name} options ") for name in sections]
    assert places == sorted(places)
    for name, option in (("recipe.loss", "--recipe.loss.epsilon-high"), ("play", "--play.num-prompts INT")):
        section = out[out.index(f" {name} options ") :]
        assert option in section[: section.index(" options ", 20)]


@pytest.mark.parametrize(
    ("command", "slip", "meant"),
    [
        ("train", "--learning-rat", "did you mean --optimizer.learning-rate"),
        ("train", "--learning-rtae", "did you mean --optimizer.learning-rate"),
        ("train", "--num_prompts", "did you mean --play.num-prompts?"),
        ("train", "--beta", "did you mean --recipe.kl.beta"),
        ("train", "--optimiser.max-gradnorm", "did you mean --optimizer.max-grad-norm?"),
        ("train", "--recipe.advantge", "did you mean --recipe.advantage"),
        ("train", "--env-option", "did you mean --env.options"),
        ("train", "--resum", "did you mean --resume?"),
        ("demo", "--num-pormpts", "did you mean --play.num-prompts?"),
        ("sft", "--lerning-rate", "did you mean --optimizer.learning-rate"),
        ("train", "--nothing-like-it", "unknown option '--nothing-like-it'; --help-all shows them all"),
    ],
)
def test_a_slip_is_told_the_option_that_was_meant_with_its_section(capsys, command, slip, meant):
    status, _, err = run(capsys, command, "two-hop", slip, "1")
    assert status == 2
    assert f"palaestra {command}: unknown option {slip!r}" in err
    assert meant in err


def test_a_word_too_many_is_refused(capsys):
    status, _, err = run(capsys, "train", "two-hop", "calculator")
    assert (status, "'two-hop' has no weight" in err) == (2, True)


def test_a_preset_gives_the_defaults_and_options_change_them(begun, tmp_path):
    export(tiny_model(len(families.TOKENIZERS["tiny"]), layers=1), families.TOKENIZERS["tiny"], tmp_path / "model")
    config = begun("--model", tmp_path / "model", "--preset", "laptop", "--steps", "3")
    assert (config["steps"], config["play"]["num_prompts"], config["eval_tasks"]) == (3, 4, 64)
    assert config["optimizer"]["learning_rate"] == 2e-5
    assert config["cold_start"]["demonstrations"] is None, "it imitates only if asked to"


def test_an_unknown_preset_is_refused_with_the_known_ones(capsys):
    status, _, err = run(capsys, "train", "two-hop", "--preset", "desktop")
    assert status == 2
    assert "laptop" in err
