"""Training: GRPO and related algorithms, supervised fine-tuning, sampling of tasks, evaluation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config, laptop_config, tiny_config
from palaestra.trainers.config.recipes import Recipe, find_recipe
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.progress import Progress

if TYPE_CHECKING:
    from palaestra.trainers.learn.imitation import imitate
    from palaestra.trainers.setup.open_learner import open_learner
    from palaestra.trainers.training import train

__all__ = [
    "GRPOConfig",
    "Progress",
    "Recipe",
    "Run",
    "SFTConfig",
    "find_recipe",
    "grpo_config",
    "imitate",
    "laptop_config",
    "open_learner",
    "tiny_config",
    "tiny_sft_config",
    "train",
]


_NEED_TORCH = {
    "imitate": "palaestra.trainers.learn.imitation",
    "open_learner": "palaestra.trainers.setup.open_learner",
    "train": "palaestra.trainers.training",
}


def __getattr__(name: str) -> Any:
    """Import a function of `_NEED_TORCH` on first use: it needs torch, and a run's settings must load without it."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)
