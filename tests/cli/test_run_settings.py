"""Settings in a file and by `--set`: what they are called, which of them counts, and what `--help` shows of them."""

import json
import re

import pytest
from commands import run, words

from palaestra.cli import sft, sweep, train
from palaestra.cli.run_settings import settings_of
from palaestra.cli.short_help import MAIN
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig, tiny_config
from palaestra.trainers.config.sft_config import tiny_sft_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.saved_config import written_config

ENV = "palaestra/TwoHop-v0"
TOML = """
env_id = "two-hop"
steps = 7
lora_alpha = 8
overlong_share = 0.3
track = ["wandb", "trackio"]
run = "runs/named"

[env]
env_options = ["hops=2"]

[play]
num_prompts = 3
ordered = false

[recipe.loss]
epsilon_high = 0.3

[scale]
fit = false
lora_target_modules = ["q_proj", "v_proj"]

[engine]
kind = "process"
weights_folder = "weights"
"""


def parsed(*arguments):
    """Return the options of `palaestra train`."""
    return train.parse([str(argument) for argument in arguments], "palaestra train")


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file of settings."""

    def write(text, name="settings.toml"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def test_a_file_names_settings_by_section_or_by_name_alone_services_too(file):
    options = parsed("--config", file(TOML))
    config = tiny_config(
        ENV,
        steps=7,
        lora_alpha=8.0,
        overlong_share=0.3,
        track=("wandb", "trackio"),
        num_prompts=3,
        env_options=("hops=2",),
        ordered=False,
        epsilon_high=0.3,
        fit=False,
        lora_target_modules=("q_proj", "v_proj"),
        weights_folder="weights",
        engine={"kind": "process"},
    )
    assert options.config == config
    assert str(options.run) == "runs/named"


def test_the_command_line_wins_over_set_and_set_over_files_and_they_over_the_preset(file):
    early = file({"recipe": "dapo", "steps": 2, "play": {"slots": 2, "num_prompts": 2, "temperature": 2.0}}, "a.json")
    late = file("slots = 3\nnum_prompts = 3\ntemperature = 3.0\ntrack = ['wandb']\nordered = true\ncurated = ['a']\n")
    arguments = ["--set", "play.num-prompts=4", "--config", early, "--set=temperature=4.0", "--config", late]
    last = ("--play.no-ordered", "--curated", "b")
    options = parsed("two-hop", "--play.temperature", "5", *arguments, "--track", "trackio", *last)
    play = options.config.play
    assert (options.config.steps, play.slots, play.num_prompts, play.temperature) == (2, 3, 4, 5.0)
    assert (options.config.track, options.config.env.curated, play.ordered) == (("trackio",), ("b",), False)
    assert (options.recipe, options.config.recipe.recipe_name) == ("dapo", "dapo")
    assert options.config.recipe.loss.dual_clip is None, "the preset's"


def test_the_environment_of_the_command_line_wins_over_the_files(file):
    path = file({"env_id": "two-hop=3,calculator=1", "model": "some/folder"}, "a.json")
    assert parsed("--config", path).config.env.env_id == f"{ENV}=3,palaestra/Calculator-v0=1"
    assert parsed("calculator", "--config", path).config.env.env_id == "palaestra/Calculator-v0"
    assert parsed("--config", path).config.optimizer.learning_rate == 1e-6, "the defaults are those of its model"


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("num_mini_batches=2", "optimizer.num_mini_batches", 2),
        ("loss.dual-clip=None", "recipe.loss.dual_clip", None),
        ("cache_tokens=null", "play.cache_tokens", None),
        ("epochs=true", "recipe.sampler.epochs", True),
        ("play.ordered=False", "play.ordered", False),
        ("gradient_checkpointing=True", "scale.gradient_checkpointing", True),
        ('lora_target_modules=["a", "b"]', "scale.lora_target_modules", ("a", "b")),
        ("env_options=hops=2", "env.env_options", ("hops=2",)),
        ("env.options=hops=2", "env.env_options", ("hops=2",)),
        ("weights_folder=-x", "engine.weights_folder", "-x"),
        ("device=cpu", "device", "cpu"),
    ],
)
def test_set_takes_any_setting_with_its_section_or_without(word, name, value):
    config = parsed("two-hop", "--set", word).config
    for part in name.split("."):
        config = getattr(config, part)
    assert config == value


def test_parts_of_the_recipe_are_named_in_a_file_with_their_settings(file):
    recipe = {"advantage": {"name": "gae", "lam": 0.9}, "critic": "head", "correction": None}
    config = parsed("two-hop", "--config", file({"recipe": recipe}, "a.json")).config
    assert config == tiny_config(ENV, advantage={"name": "gae", "lam": 0.9}, critic="head")
    loss = {"name": "clip-cov", "clip_cov_ratio": 0.1, "within": {"epsilon": 0.1, "epsilon_high": 0.4}}
    config = parsed("two-hop", "--config", file({"recipe": {"loss": loss}}, "a.json")).config
    assert config == tiny_config(ENV, loss=loss)


@pytest.mark.parametrize("recipe", ["grpo-tcr", "ppo", "vspo-prs", "reagent-r"])
def test_the_config_of_a_run_is_a_file_of_settings(recipe, file):
    config = tiny_config(ENV, recipe, seed=3, entropy_coef=0.1, curated=("fit.json",), checkpoint_every=None)
    assert parsed("--config", file(written_config(config), "config.json")).config == config


def test_imitation_and_sweeps_take_them_too(file, tmp_path):
    config = tiny_sft_config(files=("a.jsonl", "b"), batch_rows=3, format="hermes", track=("wandb",), lora_r=2)
    path = file(written_config(config), "config.json")
    assert sft.parse(["--config", str(path)]).config == config
    assert sft.parse(["c", "--config", str(path), "--set", "epochs=2"]).config.files == ("c",)
    path = file({"env_id": "two-hop", "seeds": "1,2", "over": ["epsilon-high=0.3,0.4"]}, "a.json")
    options = train.parse(["--config", str(path)], "palaestra sweep", None, sweep.SweepOptions)
    assert (options.seeds, options.over) == ("1,2", ("epsilon-high=0.3,0.4",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_alpah": 3}, "unknown option 'lora_alpah'; did you mean scale.lora_alpha?"),
        ({"play": {"num_prompt": 3}}, "unknown option 'play.num_prompt'; did you mean play.num_prompts?"),
        ({"play": {"lora_alpha": 3}}, "unknown option 'play.lora_alpha'; did you mean scale.lora_alpha?"),
        (
            {"recipe": {"loss": {"epsilo": 0.1}}},
            "unknown option '--recipe.loss.epsilo'; did you mean --recipe",
        ),
        ({"config": "b.json"}, "unknown option 'config'"),
        ({"env_options": ["a=1", "--allow-code", "b"]}, "'--allow-code' in a list"),
        ([1], "is no object"),
        ("{", "is no JSON"),
    ],
)
def test_what_is_wrong_in_a_file_is_an_error_with_its_name(capsys, file, settings, message):
    path = file(settings, "wrong.json")
    status, _, err = run(capsys, "train", "two-hop", "--config", path)
    assert status == 2
    assert message in words(err)
    assert "wrong.json" in err or "env.options has" in err or "--recipe.loss.epsilo" in err


def test_a_file_that_there_is_not_and_a_word_without_a_value_are_errors(capsys, file):
    for arguments, message in (
        (("--config", "nowhere.toml"), "--config nowhere.toml cannot be read"),
        (("--config", file("steps 3")), "is no TOML"),
        (("--set", "steps"), "--set has 'steps'; expected NAME=VALUE"),
        (("--set", "stepps=3"), "--set stepps=3: unknown option 'stepps'; did you mean steps?"),
        (("--set", "steps=many"), "--steps"),
    ):
        status, _, err = run(capsys, "train", "two-hop", *arguments)
        assert (status, message in words(err)) == (2, True), err


def test_a_resumed_run_is_told_apart_by_a_file_as_by_an_option(capsys, file, tmp_path):
    Run.create(tmp_path / "run", tiny_config(ENV, track=("tensorboard",))).close()
    resumed = ("--resume", tmp_path / "run")
    with pytest.raises(UsageError, match="--track tensorboard; if you trust it"):
        parsed(*resumed)
    path = file({"track": ["tensorboard"], "recorded_groups": 1, "env_id": "two-hop"}, "a.json")
    config = parsed(*resumed, "--config", path).config
    assert (config.track, config.save.recorded_groups) == (("tensorboard",), 1)
    status, _, err = run(capsys, "train", *resumed, "--config", path, "--set", "learning_rate=0.5")
    assert status == 2
    assert "optimizer.learning_rate was 0.001 and is 0.5" in words(err)


@pytest.mark.parametrize("command", ["train", "sweep", "demo", "sft"])
def test_help_fits_two_screens_and_help_all_shows_every_setting(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    status, short, _ = run(capsys, command, "--help")
    assert status == 0
    assert len(short.splitlines()) <= 105
    assert "--set NAME=VALUE" in short
    assert "--help-all shows them too" in short
    status, whole, _ = run(capsys, command, "--help-all")
    flags, all_flags = ({*re.findall(r"(?<![\w`-])--[\w.-]+", text)} for text in (short, whole))
    assert status == 0
    assert flags - {"--help-all"} <= all_flags | {"--recipe.PART"}
    hidden = {"--optimizer.weight-decay", "--scale.lora-alpha", "--save.keep-checkpoints"}
    assert hidden <= all_flags
    assert not hidden & flags
    if command == "train":
        assert 40 <= len(re.findall(r"^  -", short, re.MULTILINE)) <= 46


def test_the_settings_that_help_shows_exist_and_names_alone_are_clear():
    names = [setting.path for setting in settings_of(GRPOConfig)]
    assert {f"{section}.{name}" for section, shown in MAIN.items() for name in shown} <= {*names}
    outer = {name for name in names if not name.startswith("recipe.loss.within.")}
    assert len({name.rpartition(".")[2] for name in outer}) == len(outer)


def test_an_old_spelling_of_a_setting_that_help_does_not_show_still_works():
    assert parsed("two-hop", "--optimizer.weight-decay", "0.5").config.optimizer.weight_decay == 0.5
