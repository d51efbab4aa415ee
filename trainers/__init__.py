"""What learns: GRPO and its family, supervised fine-tuning, sampling of tasks, evaluation.

    with Run("runs/mine", tiny_config("palaestra/TwoHop-v0", steps=20)) as run:
        for progress in train(run):
            print(progress.step, progress.metrics)

`Run` is a folder, its config says what is asked (`GRPOConfig`, with a `Recipe`, or `SFTConfig`), and `train` takes it
to its end.
"""

from typing import TYPE_CHECKING, Any

from palaestra.trainers.config import GRPOConfig, grpo_config, tiny_config
from palaestra.trainers.progress import Progress
from palaestra.trainers.recipes import Recipe, find_recipe
from palaestra.trainers.run import Run
from palaestra.trainers.sft_config import SFTConfig, tiny_sft_config

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
    """`train` needs torch, which the settings of a run do not."""
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from palaestra.trainers.training import train

    return train
