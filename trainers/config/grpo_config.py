"""The settings of a GRPO run, validated on creation, with one section for each part of the trainer.

This module does not import torch, because `--help` imports it and must be fast. `tiny_config(ID, num_prompts=4)` finds
the section of a setting by the setting's name.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from palaestra.errors import ConfigError
from palaestra.options import SERVICE
from palaestra.trainers.config.env_config import EnvConfig
from palaestra.trainers.config.paper_runs import run_settings
from palaestra.trainers.config.recipes import Recipe, find_recipe
from palaestra.trainers.config.sections_config import (
    BatchOptimizerConfig,
    ColdStartConfig,
    EngineConfig,
    EvalConfig,
    PlayConfig,
    PlaySaveConfig,
    PromptConfig,
    ScaleConfig,
    TrackerNames,
)
from palaestra.trainers.validation import COUNT, NOT_NEGATIVE, changed, check_fields

_LONGEST_PROMPT = 2560


@dataclass(frozen=True, slots=True)
class GRPOConfig(PromptConfig):
    """Settings of one GRPO run. The defaults are those of GRPO-TCR's authors (arXiv 2510.11701 and its released
    code); `tiny_config` returns the settings for the built-in agent.
    """

    KIND: ClassVar[str] = "grpo"
    LENGTH: ClassVar[str] = "steps"

    env: EnvConfig
    model: str = "tiny"
    """`tiny` for the built-in agent, or a model's folder or hub name."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of tasks, sampling noise and initial weights."""
    steps: Annotated[int, COUNT] = 450
    """Number of batches to play and learn from."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU if there is one."""
    eval_tasks: Annotated[int, NOT_NEGATIVE] = 256
    """Number of held-out tasks, played before and after; 0 measures nothing."""
    track: Annotated[TrackerNames, SERVICE] = ()
    """Trackers that get the metrics too: wandb, trackio, tensorboard, or several."""
    collapse: Literal["warn", "stop", "off"] = "warn"
    """Reaction to a collapse of the policy, which is detected by entropy, log-prob gap, repetition and tool calls: a
    note, or an end with a checkpoint."""
    recipe: Recipe = field(default_factory=lambda: find_recipe("grpo-tcr"))
    play: PlayConfig = field(default_factory=PlayConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    optimizer: BatchOptimizerConfig = field(default_factory=BatchOptimizerConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    save: PlaySaveConfig = field(default_factory=PlaySaveConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        self.require_loaded(self.model != "tiny")
        if self.eval.eval_steps is not None and not self.eval_tasks:
            raise ConfigError("eval_steps asks for measurements on held-out tasks, and eval_tasks is 0; raise it")
        if self.engine.kind == "vllm" and self.model == "tiny":
            raise ConfigError("vLLM does not serve the tiny agent, whose heads are 16 wide; name a --model of yours")
        longest, prefix = self.play.max_episode_tokens, self.recipe.longest_prefix
        if longest is not None and prefix >= longest:
            raise ConfigError(
                f"max_prefix_tokens is {prefix} and max_episode_tokens {longest}: after a first attempt of that length "
                "there is no room for a second one; lower the one (--recipe.sampler.max-prefix-tokens), or raise the "
                "other (--play.max-episode-tokens)"
            )

    @property
    def cold_started(self) -> bool:
        """Return whether the agent imitates demonstrations before the run: the tiny one does, another if asked to."""
        return self.model == "tiny" or self.cold_start.demonstrations is not None

    @property
    def first_rank_plays(self) -> bool:
        """Return whether the first of several ranks plays for all of them: where it plays ahead, and with vLLM, whose
        servers it then uses all. Otherwise each rank plays its share of a batch.
        """
        return self.play.max_staleness > 0 or self.engine.kind == "vllm"

    @property
    def longest_row(self) -> int:
        """Return `max_episode_tokens`, or the length that the recipe implies if it is None."""
        longest = self.recipe.max_completion_length + self.recipe.longest_prefix + _LONGEST_PROMPT
        return self.play.max_episode_tokens or longest

    @property
    def heading(self) -> dict[str, Any]:
        """Return the settings at the beginning of a run's summary."""
        settings = {
            "env_id": self.env.env_id,
            "model": self.model,
            "recipe": self.recipe.recipe_name,
            "seed": self.seed,
        }
        return {**settings, "steps": self.steps, "eval_tasks": self.eval_tasks}


def tiny_config(env_id: str, recipe: Recipe | str = "grpo-tcr", **changes: Any) -> GRPOConfig:
    """Return the settings that train the built-in agent within a minute on two CPU cores (measured;
    docs/benchmarks.md).

    `changes` are settings by name, from any section.
    """
    settings: dict[str, Any] = {
        "steps": 50,
        "num_prompts": 12,
        "num_generations": 8,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "adam_beta2": 0.99,
        "max_turn_tokens": 72,
        "max_episode_tokens": 256,
        "slots": 96,
        "ordered": True,
        "micro_batch_tokens": 4096,
        "checkpoint_every": 5,
        "recorded_groups": 12,
    }
    preset = find_recipe(recipe) if isinstance(recipe, str) else recipe
    if preset.longest_prefix:
        settings |= {"max_prefix_tokens": 256, "max_episode_tokens": 512}
    config = changed(GRPOConfig(EnvConfig(env_id), recipe=preset), {**settings, **changes})
    # A shaping of your own may have no such setting.
    if "max_completion_length" in changes or not hasattr(config.recipe.shaping, "max_completion_length"):
        return config
    return changed(config, {"max_completion_length": 256})


def laptop_config(env_id: str, recipe: Recipe | str = "grpo-tcr", **changes: Any) -> GRPOConfig:
    """Return the recipe's settings with those of a small pretrained model on two CPU cores on top.

    For 135 million weights a step takes about 20 s with an adapter and turns of 24 tokens (docs/benchmarks.md).
    `changes` are settings by name.

    If demonstrations are asked for, the imitation before the run is short: two passes over about 96 episodes.
    """
    settings: dict[str, Any] = {
        "steps": 10,
        "eval_tasks": 64,
        "num_prompts": 4,
        "num_generations": 8,
        "max_turn_tokens": 48,
        "max_episode_tokens": 512,
        "slots": 32,
        "ordered": True,
        "learning_rate": 2e-5,
        "num_mini_batches": 2,
        "micro_batch_tokens": 768,
        "checkpoint_every": 5,
        "recorded_groups": 4,
        "imitation_gate": 0.6,
        "imitation_steps": 60,
        "imitation_warmup": 3,
        "imitation_decay": 6,
        "first_gate": 18,
        "gate_every": 6,
        "gate_episodes": 64,
        "imitation_batch_rows": 8,
    }
    preset = find_recipe(recipe) if isinstance(recipe, str) else recipe
    if preset.longest_prefix:
        settings |= {"max_prefix_tokens": 512, "max_episode_tokens": 1024}
    config = grpo_config(env_id, preset, **{**settings, **changes})
    if "max_completion_length" in changes or not hasattr(config.recipe.shaping, "max_completion_length"):
        return config
    return changed(config, {"max_completion_length": config.longest_row})


def grpo_config(env_id: str, recipe: Recipe | str = "grpo-tcr", **changes: Any) -> GRPOConfig:
    """Return the settings of the recipe's authors, for your own model: those of play and optimizer too, where the
    recipe is of one of the three papers, and else those of GRPO-TCR. `changes` are settings of any section, by name.
    """
    preset = find_recipe(recipe) if isinstance(recipe, str) else recipe
    settings = run_settings(preset.recipe_name)
    return changed(GRPOConfig(EnvConfig(env_id), recipe=preset), {**settings, **changes})
