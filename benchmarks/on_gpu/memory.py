"""Measure the peak memory of a part on a GPU, and compare it with the memory estimate.

Left out: the memory of a CPU, which `make test` compares with the estimate by torch's profiler.
"""

import gc
from collections.abc import Sequence

import torch

from palaestra.trainers.scale.memory_estimate import Part


class Peak:
    """Peak memory between the creation of this object and `read`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)

    def read(self, predicted: Sequence[Part], *, alone: bool = True) -> dict[str, float]:
        """Return the peak and the predicted bytes; if this process is `alone` on the GPU, both include the bytes
        outside of torch.
        """
        figures = {"predicted_bytes": float(sum(part.size for part in predicted))}
        if self._device.type != "cuda":
            return figures
        outside = outside_of_torch(self._device) if alone else 0.0
        return figures | {"peak_bytes": torch.cuda.max_memory_allocated(self._device) + outside}


def outside_of_torch(device: torch.device) -> float:
    """Return the used bytes that torch in this process has not allocated: those of libraries and of other processes."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return float(total - free - torch.cuda.memory_reserved(device))
