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
    """Who learns: a model's folder or hub name, or `tiny` for the built-in agent, which is made for these episodes."""
    format: str | None = None
    """Call format that the student learns to write; by default the one of its chat template, or of most episodes for a
    template that writes none. Calls of the episodes are written anew in it."""
    thinking: Literal["keep", "strip"] = "keep"
    """What becomes of `<think>` blocks in the episodes: `strip` leaves out what was thought."""
    imitated_turns: Literal["all", "worked"] = "all"
    """Which turns are learned: `worked` has those with a call that failed as context, so that the way out of a fault is
    learned and not the fault."""
    epochs: Annotated[int, COUNT] = 5
    """How often each episode is imitated."""
    batch_rows: Annotated[int, COUNT] = 32
    """Rows an optimizer step: an episode is one, or more where the chat template rewrites history."""
    max_row_tokens: Annotated[int, Field(ge=2)] = 32_768
    """Longest row in tokens; a longer one is cut off at the end."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Decides the order, and the tiny agent's initial weights."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: a GPU if there is one."""
    track: Annotated[TrackerNames, SERVICE] = ()
    """Trackers that get the metrics, beside the run's folder. One of wandb, trackio, tensorboard, or several."""
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
