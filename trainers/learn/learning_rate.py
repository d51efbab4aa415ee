"""The learning-rate schedule: warm-up, then a constant, linear or cosine rate."""

import math

from palaestra.trainers.config.sections_config import OptimizerConfig


def rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """Return the factor of the learning rate in step `step` of `steps` (from 0): it rises linearly during the warm-up,
    then stays constant, or falls linearly or as a cosine.
    """
    rising = int(config.warmup_share * steps)
    if step < rising:
        return (step + 1) / rising
    if config.lr_schedule == "constant":
        return 1.0
    if config.lr_schedule == "linear":
        return 1 - 0.95 * (step - rising) / max(1, steps - rising - 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
