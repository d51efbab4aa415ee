"""What a device can do, by plain torch: everything else is measured by it."""

import statistics
import time
from collections.abc import Callable

import torch

from on_gpu.shapes import Work

_BURSTS = 5
_CALLS = 10
"""Of one burst: launching one call costs nothing where the one before still runs."""


def rates(work: Work, device: torch.device) -> dict[str, float | str]:
    """Its name, and matrix products in FLOPs a second."""
    side = work.matrix
    left, right = (torch.randn((side, side), device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    return {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "matrix_flops": 2 * side**3 / _seconds(lambda: torch.mm(left, right, out=product), device),
    }


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one call, the median over bursts."""
    found = []
    for burst in range(_BURSTS + 1):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(_CALLS):
            work()
        wait_for(device)
        if burst:  # The first warms up.
            found.append((time.perf_counter() - began) / _CALLS)
    return statistics.median(found)
