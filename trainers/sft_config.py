"""The settings of imitation from recorded episodes, checked where they are made. No torch here: `--help` reads this."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from palaestra import formats
from palaestra.trainers.checked import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, check_fields, from_values


@dataclass(frozen=True, slots=True)
class SFTConfig:
    """How episodes are imitated. The defaults are those of GRPO-TCR's authors for a pre-trained model (arXiv 2510.11701
    and its released code); `tiny_sft_config` has those of the built-in agent.
    """

    model: Annotated[str, tyro.conf.arg(aliases=["-m"])] = "tiny"
    """Who learns: a model's folder or hub name, or `tiny` for the built-in agent, which is made for these episodes."""
    format: str | None = None
    """Call format that the student learns to write; the one of its chat template by default. Calls of the episodes are
    written anew in it, and stay as they are for a template that writes none."""
    epochs: Annotated[int, COUNT] = 5
    """How often each episode is imitated."""
    batch_rows: Annotated[int, COUNT] = 32
    """Rows an optimizer step: an episode is one, or more where the chat template rewrites history."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` steps hidden matrices by Muon and the rest by AdamW: for a model that starts from random weights."""
    learning_rate: Annotated[float, POSITIVE] = 5e-5
    """AdamW's."""
    matrix_learning_rate: Annotated[float, POSITIVE] = 0.03
    """Muon's."""
    lr_schedule: Literal["cosine", "constant"] = "cosine"
    """`cosine` falls to 0 at the end."""
    warmup_share: Annotated[float, BELOW_ONE] = 0.1
    """Share of the steps over which the learning rate rises."""
    adam_beta2: Annotated[float, BELOW_ONE] = 0.95
    """AdamW's second beta; the first is 0.9."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 0.01
    """AdamW's and Muon's."""
    max_grad_norm: Annotated[float, POSITIVE] = 1.0
    """Gradients are scaled down to this norm."""
    max_row_tokens: Annotated[int, Field(ge=2)] = 32_768
    """What is longer is cut off at the end."""
    micro_batch_tokens: Annotated[int, COUNT] = 32_768
    """Padded tokens in one forward and backward pass; changes memory and speed, not the result."""
    keep_checkpoints: Annotated[int, COUNT] = 2
    """Models of earlier epochs that are kept."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Decides the order, and the tiny agent's initial weights."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.format is not None:
            formats.known(self.format)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `sft_config_from` reads it back."""
        return asdict(self)


def tiny_sft_config(**changes: Any) -> SFTConfig:
    """The settings that raise the built-in agent from random weights: it learns to copy several times sooner with Muon
    than with AdamW alone.
    """
    settings: dict[str, Any] = {
        "model": "tiny",
        "epochs": 20,
        "optimizer": "muon",
        "learning_rate": 4e-3,
        "weight_decay": 0.0,
        "max_row_tokens": 2048,
        "micro_batch_tokens": 4096,
    }
    return sft_config_from({**settings, **changes})


def sft_config_from(values: Mapping[str, Any]) -> SFTConfig:
    """A config from plain values; an unknown key is an error that names the closest one."""
    return from_values(SFTConfig, values)
