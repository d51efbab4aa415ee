"""What imitation of recorded episodes can be told, checked where it is made. No torch here: `--help` reads this."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import tyro

from palaestra import formats
from palaestra.errors import ConfigError


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
    epochs: int = 5
    """How often each episode is imitated."""
    batch_rows: int = 32
    """Rows an optimizer step: an episode is one, or more where the chat template rewrites history."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon` steps hidden matrices by Muon and the rest by AdamW: for a model that starts from random weights."""
    learning_rate: float = 5e-5
    """AdamW's."""
    matrix_learning_rate: float = 0.03
    """Muon's."""
    lr_schedule: Literal["cosine", "constant"] = "cosine"
    """`cosine` falls to 0 at the end."""
    warmup_share: float = 0.1
    """Share of the steps over which the learning rate rises."""
    adam_beta2: float = 0.95
    """AdamW's second beta; the first is 0.9."""
    weight_decay: float = 0.01
    """AdamW's and Muon's."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    max_row_tokens: int = 32_768
    """What is longer is cut off at the end."""
    micro_batch_tokens: int = 32_768
    """Padded tokens in one forward and backward pass; changes memory and speed, not the result."""
    keep_checkpoints: int = 2
    """Models of earlier epochs that are kept."""
    seed: int = 0
    """Decides the order, and the tiny agent's initial weights."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        positive = (
            "epochs batch_rows learning_rate matrix_learning_rate max_grad_norm micro_batch_tokens keep_checkpoints"
        )
        if self.format is not None:
            formats.known(self.format)
        # Written so that not-a-number is refused too.
        for name in positive.split():
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("weight_decay", "seed"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0")
        for name in ("warmup_share", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.max_row_tokens < 2:
            raise ConfigError(f"max_row_tokens is {self.max_row_tokens}; it must be at least 2: a prompt and a turn")
        for name, known in (("optimizer", ("adamw", "muon")), ("lr_schedule", ("cosine", "constant"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(map(repr, known))}")

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
    known = [field.name for field in fields(SFTConfig)]
    for key in values:
        if key not in known:
            raise ConfigError(
                f"unknown option {key!r}; did you mean {get_close_matches(key, known, n=1, cutoff=0.0)[0]!r}?"
            )
    return SFTConfig(**values)
