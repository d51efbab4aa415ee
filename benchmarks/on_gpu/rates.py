"""Measure the speed of a device with plain torch, as the reference for all other rates."""

import statistics
import time
from collections.abc import Callable

import torch

from on_gpu.shapes import Work

_BURSTS = 5
_CALLS = 10
"""Number of calls of one burst: a launch takes no time while the call before still runs."""


def rates(work: Work, device: torch.device) -> dict[str, float | str]:
    """Return the device's name, and its rate of matrix products in FLOPs per second."""
    side = work.matrix
    left, right = (torch.randn((side, side), device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    return {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "matrix_flops": 2 * side**3 / _seconds(lambda: torch.mm(left, right, out=product), device),
    }


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, the median over bursts."""
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
