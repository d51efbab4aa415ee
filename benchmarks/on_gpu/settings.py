"""The settings of a part: those that `train` would choose for the free memory of the device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from on_gpu.answers import ENV_ID
from on_gpu.shapes import Shape
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config
from palaestra.trainers.config.recipes import Recipe
from palaestra.trainers.losses.group_advantages import Successes
from palaestra.trainers.scale.available_memory import room_of
from palaestra.trainers.scale.fit_memory import Fitted, fitted


@dataclass(frozen=True, slots=True)
class Drawn(Successes):
    """Advantages that are random numbers, so that every row is trained on, whatever its reward."""

    def __call__(self, batch: Batch, scores: BatchScores) -> np.ndarray:
        """Return one number per episode."""
        return np.random.default_rng(batch.number).standard_normal(len(batch.rewards))


def settled(shape: Shape, device: torch.device, **changes: Any) -> Fitted:
    """Return the config of a run with this model on this device, and its memory estimate."""
    plain = {"num_mini_batches": 1, "precision": "bfloat16", "device": device.type}
    config = grpo_config(ENV_ID, Recipe("grpo-tcr", advantage=Drawn()), **{**plain, **changes})
    return fitted(config, shape.config(), room_of(device))


def chosen_settings(config: GRPOConfig) -> dict[str, Any]:
    """Return the settings that were chosen to make the run fit."""
    scale = config.scale
    return {
        "micro_batch_tokens": config.optimizer.micro_batch_tokens,
        "gradient_checkpointing": bool(scale.gradient_checkpointing),
        "optimizer_bits": scale.optimizer_bits or 32,
        "optimizer_offload": bool(scale.optimizer_offload),
    }
