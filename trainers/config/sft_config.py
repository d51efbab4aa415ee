"""The settings of imitation from recorded episodes, validated on creation. No torch is imported: `--help` is fast."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import tyro
from pydantic import Field

from palaestra import formats
from palaestra.options import SERVICE
from palaestra.trainers.config.sections_config import (
    OptimizerConfig,
    PromptConfig,
    SaveConfig,
    ScaleConfig,
    TrackerNames,
)
from palaestra.trainers.validation import COUNT, NOT_NEGATIVE, changed, check_fields

_OPTIMIZER = OptimizerConfig(
    learning_rate=5e-5, lr_schedule="cosine", warmup_share=0.1, adam_beta2=0.95, micro_batch_tokens=32_768
)


@dataclass(frozen=True, slots=True)
class SFTConfig(PromptConfig):
    """Settings of imitation. The defaults are those of GRPO-TCR's authors for a pre-trained model (arXiv 2510.11701 and
    its released code); `tiny_sft_config` returns the settings for the built-in agent.
    """

    KIND: ClassVar[str] = "sft"
    LENGTH: ClassVar[str] = "epochs"

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")] = ()
    """Episode files, or folders of them (a run's folder too)."""
    model: Annotated[str, tyro.conf.arg(aliases=["-m"])] = "tiny"
    """Model to train: a folder or hub name, or `tiny` for the built-in agent, which is made for these episodes."""
    format: str | None = None
    """Call format that the student learns to write; by default the one of its chat template, or of most episodes for a
    template that writes none. Calls of the episodes are written anew in it."""
    thinking: Literal["keep", "strip"] = "keep"
    """How `<think>` blocks of the episodes are treated: `strip` removes the thinking."""
    imitated_turns: Literal["all", "worked"] = "all"
    """Turns to imitate: with `worked`, a turn with a failed call is only context, so that the agent learns to recover
    from the fault, not to make it."""
    epochs: Annotated[int, COUNT] = 5
    """Number of times that each episode is imitated."""
    batch_rows: Annotated[int, COUNT] = 32
    """Rows per optimizer step: an episode is one row, or more if the chat template rewrites earlier messages."""
    max_row_tokens: Annotated[int, Field(ge=2)] = 32_768
    """Maximum tokens of a row; a longer one is cut off at the end."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed of the order of rows, and of the tiny agent's initial weights."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU if there is one."""
    track: Annotated[TrackerNames, SERVICE] = ()
    """Trackers that get the metrics, in addition to the run's folder: one or several of wandb, trackio, tensorboard."""
    optimizer: OptimizerConfig = _OPTIMIZER
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    save: SaveConfig = field(default_factory=SaveConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        self.require_loaded(self.model != "tiny")
        if self.format is not None:
            formats.validate(self.format)

    @property
    def heading(self) -> dict[str, Any]:
        """Return the settings at the beginning of a run's summary."""
        return {"model": self.model, "seed": self.seed, "epochs": self.epochs}


def tiny_sft_config(**changes: Any) -> SFTConfig:
    """Return the settings that train the built-in agent from random weights. It learns to copy several times sooner
    with Muon than with AdamW alone. `changes` are settings by name, from any section.
    """
    settings: dict[str, Any] = {
        "model": "tiny",
        "epochs": 20,
        "algorithm": "muon",
        "learning_rate": 4e-3,
        "weight_decay": 0.0,
        "max_row_tokens": 2048,
        "micro_batch_tokens": 4096,
    }
    return changed(SFTConfig(), {**settings, **changes})
