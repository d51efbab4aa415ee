"""Keep optimizer state (moments and float32 copies) in host memory between the optimizer steps.

For a step the tensors are copied to the model's device, and back afterwards, so the results are exactly the same as
without the offload. For a GPU the host memory is pinned, and allocated once. Left out: gradients, which accumulate on
the GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from palaestra.trainers.scale.master_weights import Masters

_SMALL = 4096
"""Tensors with fewer elements stay on the device."""
_Place = tuple[str, str]
"""Name of a weight, and name of a moment; the second is "" for the master weight itself."""


class HostMemory:
    """Host buffers for the state of optimizers and for the master weights that they update."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], masters: Masters) -> None:
        self._optimizers, self._masters = optimizers, masters
        self._device = next(iter(masters.trained.values())).device
        self._buffers: dict[_Place, Tensor] = {}
        self._move(self._to_host)

    @contextmanager
    def brought(self) -> Iterator[None]:
        """Hold all state on the model's device during a `with` block."""
        self._move(self._to_device)
        try:
            yield
        finally:
            self._move(self._to_host)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # Otherwise a checkpoint might read an unfinished copy.

    @torch.no_grad()
    def _move(self, moved: Callable[[_Place, Tensor], Tensor]) -> None:
        copies = self._masters.copies
        for name, parameter in self._masters.stepped.items():
            if name in copies:
                parameter.data = moved((name, ""), parameter.data)
            for optimizer in self._optimizers:
                state = optimizer.state.get(parameter, {})
                for kind, value in state.items():
                    if torch.is_tensor(value):
                        state[kind] = moved((name, kind), value)

    def _to_host(self, place: _Place, tensor: Tensor) -> Tensor:
        if tensor.numel() < _SMALL:
            return tensor
        if place not in self._buffers:
            pinned = self._device.type == "cuda"
            self._buffers[place] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
        return self._buffers[place].copy_(tensor, non_blocking=True)

    def _to_device(self, place: _Place, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True, copy=tensor.numel() >= _SMALL)
