"""Training: GRPO and its family, supervised fine-tuning, sampling of tasks, evaluation."""

from typing import TYPE_CHECKING, Any

from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config, tiny_config
from palaestra.trainers.config.recipes import Recipe, find_recipe
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.progress import Progress

if TYPE_CHECKING:
    from palaestra.trainers.training import train

__all__ = [
    "GRPOConfig",
    "Progress",
    "Recipe",
    "Run",
    "SFTConfig",
    "find_recipe",
    "grpo_config",
    "tiny_config",
    "tiny_sft_config",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import `train` on first use, because it needs torch, which the settings of a run do not."""
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from palaestra.trainers.training import train

    return train
