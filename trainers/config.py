"""The settings of a GRPO run, checked where they are made. No torch here: `--help` reads this."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.plain import from_pairs
from palaestra.trainers.checked import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, SHARE, check_fields, from_values
from palaestra.trainers.durable import write_text
from palaestra.trainers.recipes import Recipe, find_recipe

_LONGEST_PROMPT = 2560
IMITATION_GATE, IMITATION_STEPS = 0.85, 700
_REPLACEABLE = ("epsilon", "epsilon_high", "beta", "importance_sampling_level", "aggregation", "kl_estimator")


@dataclass(frozen=True, slots=True)
class GRPOConfig:
    """One GRPO run. The defaults are those of GRPO-TCR's authors (arXiv 2510.11701 and its released
    code); `tiny_config` has those of the built-in agent.
    """

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV-ID")]
    """Environment to train in."""
    model: str = "tiny"
    """`tiny` for the built-in agent, or a model's folder or hub name."""
    recipe: str = "grpo-tcr"
    """Preset of the algorithm: grpo-tcr, grpo-scr or grpo-t."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Decides tasks, sampling noise and initial weights."""
    steps: Annotated[int, COUNT] = 450
    """How many batches to play and learn from."""
    num_prompts: Annotated[int, COUNT] = 64
    """Tasks a step."""
    num_generations: Annotated[int, Field(ge=2)] = 16
    """Episodes of each task: one group."""
    num_mini_batches: Annotated[int, COUNT] = 4
    """Optimizer steps a batch, at most one a group."""
    learning_rate: Annotated[float, NOT_NEGATIVE] = 1e-6
    """AdamW's."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls to 5 % at the last step."""
    adam_beta2: Annotated[float, BELOW_ONE] = 0.999
    """AdamW's second beta."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """AdamW's."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    """Gradients are scaled down to this norm."""
    temperature: Annotated[float, POSITIVE] = 1.0
    """Of sampling, in play and in the loss."""
    max_turn_tokens: Annotated[int, COUNT] = 4096
    """A turn that is cut here ends its episode."""
    max_episode_tokens: Annotated[int | None, Field(ge=2)] = None
    """Longest row: prompt, tool results and what the agent says; the recipe's longest response plus 2560 by default."""
    slots: Annotated[int, COUNT] = 256
    """Episodes played at once."""
    ordered: bool = False
    """Wait for all running tools before decoding on: curves repeat bit by bit, but the slowest tool sets the pace."""
    micro_batch_tokens: Annotated[int, COUNT] = 16_384
    """Padded tokens in one forward and backward pass; changes memory and speed, not the result."""
    epsilon: float | None = None
    """Lower clip, in place of the recipe's."""
    epsilon_high: float | None = None
    """Upper clip, in place of the recipe's."""
    beta: float | None = None
    """KL weight, in place of the recipe's."""
    dual_clip: float | None = None
    """Bound on the loss of tokens with negative advantage, in place of the recipe's; 0 switches it off."""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """Whose ratio is clipped, in place of the recipe's."""
    aggregation: Literal["token", "sample"] | None = None
    """What weighs the same in the loss, in place of the recipe's."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """How the KL is estimated, in place of the recipe's."""
    max_completion_length: Annotated[int | None, COUNT] = None
    """Longest response the overlong penalty allows, in place of the recipe's; its cache shrinks in proportion."""
    max_broken_share: Annotated[float, SHARE] = 0.05
    """The run stops when more of a step's episodes than this are BROKEN."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes."""
    train_seats: tuple[str, ...] = ()
    """Seats that learn, in a game of several; all where none is named."""
    checkpoint_every: Annotated[int, COUNT] = 10
    """Steps between checkpoints; there is always one at the end and at an interrupt."""
    keep_checkpoints: Annotated[int, COUNT] = 2
    """Older checkpoints are removed."""
    recorded_groups: Annotated[int, NOT_NEGATIVE] = 2
    """Groups a step whose episodes are kept on disk, whole, with their tokens, beside all BROKEN ones; 0 keeps none."""
    eval_tasks: Annotated[int, COUNT] = 256
    """Held-out tasks, played before and after."""
    imitation_gate: Annotated[float, Field(gt=0, le=1)] = IMITATION_GATE
    """Of the tiny agent: success at which imitation may end, among the episodes in which a call was served."""
    imitation_steps: Annotated[int, COUNT] = IMITATION_STEPS
    """Of the tiny agent: imitation steps after which initial weights below the gate are given up for others."""

    def __post_init__(self) -> None:
        check_fields(self)
        if "split" in self.environment:
            raise ConfigError("env_options has 'split'; training plays train and is measured on eval")
        _ = self.algorithm  # Checks the recipe, what replaces parts of it, and the pairs.

    @property
    def longest_row(self) -> int:
        """`max_episode_tokens`, or what the recipe makes of it."""
        return self.max_episode_tokens or self.algorithm.max_completion_length + _LONGEST_PROMPT

    @property
    def environment(self) -> dict[str, Any]:
        """`env_options` as the environment takes them."""
        return from_pairs(self.env_options, "env_options")

    @property
    def algorithm(self) -> Recipe:
        """The recipe with this run's replacements."""
        recipe = find_recipe(self.recipe)
        given = {name: getattr(self, name) for name in _REPLACEABLE}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.dual_clip is not None:
            changes["dual_clip"] = self.dual_clip or None
        if self.max_completion_length is not None:
            share = recipe.overlong_cache / recipe.max_completion_length
            changes["max_completion_length"] = self.max_completion_length
            changes["overlong_cache"] = max(1, round(share * self.max_completion_length))
        return replace(recipe, **changes)

    def save(self, path: Path) -> None:
        """Write the resolved config: the fields, and what the recipe became."""
        write_text(path, json.dumps({**asdict(self), "algorithm": asdict(self.algorithm)}, indent=2) + "\n")


def tiny_config(env_id: str, **changes: Any) -> GRPOConfig:
    """The settings that teach the built-in agent within a minute of two CPU cores (measured; docs/benchmarks.md)."""
    settings: dict[str, Any] = {
        "steps": 50,
        "num_prompts": 12,
        "num_generations": 8,
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "adam_beta2": 0.99,
        "max_turn_tokens": 72,
        "max_episode_tokens": 256,
        "max_completion_length": 256,
        "slots": 96,
        "ordered": True,
        "micro_batch_tokens": 4096,
        "checkpoint_every": 5,
        "recorded_groups": 12,
    }
    return config_from({**settings, "env_id": env_id, **changes})


def config_from(values: Mapping[str, Any]) -> GRPOConfig:
    """A config from plain values; an unknown key is an error that names the closest one."""
    return from_values(GRPOConfig, values)
