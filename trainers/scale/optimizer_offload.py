"""Keep optimizer state (moments and float32 copies) in host memory between the optimizer steps.

A step takes one bucket of weights after the other: its state is copied to the model's device, stepped, and copied back.
The results are exactly the same as without the offload, because the optimizers treat each weight by itself. For a GPU
the host memory is pinned, and allocated once. Left out: gradients, which accumulate on the GPU.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from palaestra.trainers.scale.master_weights import Masters

BUCKET_WEIGHTS = 2**28
"""Largest number of weights in a bucket; a larger tensor is a bucket of its own."""
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
        self._move(masters.stepped, self._to_host)

    def buckets(self) -> Iterator[list[str]]:
        """Yield the names of the weights of one bucket after the other. While a bucket's names are in use, its state is
        on the model's device, and the optimizers have its weights alone.
        """
        everything = [(group, group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        try:
            for names in self._divided():
                chosen = {id(self._masters.stepped[name]) for name in names}
                for group, parameters in everything:
                    group["params"] = [parameter for parameter in parameters if id(parameter) in chosen]
                self._move(names, self._to_device)
                yield names
                self._move(names, self._to_host)
        finally:
            for group, parameters in everything:
                group["params"] = parameters
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # Otherwise a checkpoint might read an unfinished copy.

    def _divided(self) -> Iterator[list[str]]:
        bucket, size = list[str](), 0
        for name, master in self._masters.stepped.items():
            if bucket and size + master.numel() > BUCKET_WEIGHTS:
                yield bucket
                bucket, size = [], 0
            bucket.append(name)
            size += master.numel()
        yield bucket

    @torch.no_grad()
    def _move(self, names: Iterable[str], moved: Callable[[_Place, Tensor], Tensor]) -> None:
        copies = self._masters.copies
        for name in names:
            parameter = self._masters.stepped[name]
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
