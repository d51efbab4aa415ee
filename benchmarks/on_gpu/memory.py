"""The most memory that a phase held on a GPU, beside what the memory model says of it.

Left out: the memory of a CPU, which `make test` compares with the model by torch's profiler.
"""

import gc
from collections.abc import Sequence

import torch

from palaestra.trainers.scale.memory_estimate import Part


class Peak:
    """From its making to `read`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)

    def read(self, predicted: Sequence[Part]) -> dict[str, float]:
        """Bytes that were held at most, with those that lie outside of torch, and bytes that were predicted."""
        sums = {"predicted_bytes": float(sum(part.size for part in predicted))}
        if self._device.type != "cuda":
            return sums
        free, total = torch.cuda.mem_get_info(self._device)
        outside = total - free - torch.cuda.memory_reserved(self._device)
        return sums | {"peak_bytes": float(torch.cuda.max_memory_allocated(self._device) + outside)}
