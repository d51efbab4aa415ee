"""Say which setting to lower when a GPU runs out of memory.

The estimate (`scale.memory_estimate`) refuses most of such runs before they begin; fragmented memory, or another
process on the same GPU, shows only in a step. Left out: retrying the step with a lower setting.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from palaestra.errors import TrainingHalted

_SETTINGS = {
    "playing": "lower --play.cache-tokens or --play.slots",
    "learning": "lower --optimizer.micro-batch-tokens, or add --scale.gradient-checkpointing True",
}


@contextmanager
def naming_memory_settings(phase: Literal["playing", "learning"]) -> Iterator[None]:
    """Turn an out-of-memory error in a `with` block into `TrainingHalted`, with the settings of this phase."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(".")[0]
        raise TrainingHalted(
            f"the GPU ran out of memory while {phase} ({reason}); {_SETTINGS[phase]}, and resume from the newest "
            "checkpoint"
        ) from error
