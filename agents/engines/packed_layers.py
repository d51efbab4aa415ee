"""Linear layers in oneDNN's own layout of the weights, with which a CPU samples faster.

A decode step multiplies each matrix with a few rows. With a plain `Linear` this took 1.5 to 1.7 times as long as in a
blocked layout (SmolLM2-135M, 12 and 32 rows). So an engine on an x86 CPU keeps a second copy of the matrices in that
layout, and uses it while it samples. The copy holds the weights as they are used: with the adapter added, so that an
adapter costs nothing in play. It is made again after the weights have changed, and dropped when the engine is released.

In float32 the results are those of the plain layers, except for the order of the sums. In bfloat16 the matrices take
half the memory and time, on a CPU with instructions for it, and log-probs differ by some hundredths.

Left out: small models, which gain nothing; layers that are not `Linear`, such as fused experts; and int8, since
activations of language models have outliers: with one scale for all inputs of a layer, SmolLM2-135M's log-probs
differed by 1.0 on average (0.02 in bfloat16).
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from palaestra.agents.adapters import effective_weights
from palaestra.agents.heap import trim_heap
from palaestra.errors import UsageError

EnginePrecision = Literal["same", "bfloat16"]
"""The precision of the engine's matrix products: that of the model, or bfloat16."""

_LEAST = 2**22
"""Minimum number of weights in linear layers for which a packed copy is made."""
_ROWS = 64
"""Number of rows that the layout is chosen for; it suits all numbers from 4 to 512."""


class PackedLayers:
    """Packed copies of a model's linear layers. If packing does not help here, there are none, and nothing changes."""

    def __init__(self, model: Any, precision: EnginePrecision = "same") -> None:
        """Raise UsageError if bfloat16 is wanted and the model is not on a CPU whose layers can be packed."""
        self._model, self._dtype = model, None if precision == "same" else torch.bfloat16
        if self._dtype is not None and not can_pack(model):
            raise UsageError(
                "engine.sampling_precision bfloat16 is for models on an x86 CPU; else set the precision of the whole "
                "run, --scale.precision bfloat16"
            )
        self._packed: dict[Any, Tensor] = {}
        self._state: tuple[int, ...] = ()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Compute the linear layers with packed weights during a `with` block, without gradients."""
        state = self._weights_state()
        if state != self._state:
            self.drop()  # The memory of the old copy is free before the new one is made.
            self._packed, self._state = dict(_pack(self._model, self._dtype)), state
            trim_heap()  # Each weight was added to its adapter and freed.
        for layer, weight in self._packed.items():
            layer.forward = partial(_multiply, weight, layer.bias, self._dtype)
        try:
            yield
        finally:
            for layer in self._packed:
                del layer.forward

    def drop(self) -> None:
        """Free the packed weights. They are made again when they are used next."""
        self._packed, self._state = {}, ()

    @property
    def bytes(self) -> int:
        """Return the size of the packed weights in bytes."""
        return sum(weight.numel() * weight.element_size() for weight in self._packed.values())

    def _weights_state(self) -> tuple[int, ...]:
        """Return numbers that change with the weights: torch counts the in-place changes of each tensor."""
        return tuple(weight._version for weight in self._model.parameters())


def _pack(model: Any, dtype: torch.dtype | None) -> Iterator[tuple[Any, Tensor]]:
    """Yield each linear layer with its packed weight; nothing if packing does not help here."""
    if not can_pack(model) or (dtype is None and packed_weights(model) == 0):
        return
    layers = dict(_layers(model))
    for name, weight in effective_weights(model):
        if (layer := layers.pop(name.removesuffix(".weight"), None)) is not None:
            yield layer, _reorder(weight, dtype)
    for layer in layers.values():  # The output layer, if its weight is the embedding's and so has that name.
        yield layer, _reorder(layer.weight, dtype)


def can_pack(model: Any) -> bool:
    """Return whether a model is on an x86 CPU for which torch has oneDNN."""
    return (
        next(model.parameters()).device.type == "cpu" and is_x86() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def packed_weights(model: Any) -> int:
    """Return the number of weights that an engine on a CPU packs for this model; 0 if it is too small to gain."""
    count: int = sum(layer.weight.numel() for _, layer in _layers(model))
    return count if count >= _LEAST else 0


def is_x86() -> bool:
    """Return whether this machine has an x86 CPU, the only kind whose layouts are known here."""
    return platform.machine() in ("x86_64", "AMD64")


def has_bfloat16() -> bool:
    """Return whether an x86 CPU has instructions for bfloat16."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the linear layers by name; one with an adapter is a single layer."""
    for name, module in model.named_modules():
        inside_adapter = ".lora_" in name or name.endswith(".base_layer")
        if hasattr(module, "lora_A") or (isinstance(module, nn.Linear) and not inside_adapter):
            yield name, module


def _reorder(weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(dtype or weight.dtype), _ROWS)
    return packed


def _multiply(weight: Tensor, bias: Tensor | None, dtype: torch.dtype | None, inputs: Tensor) -> Tensor:
    """Return what `Linear` returns, in the dtype of the inputs."""
    flat = inputs.reshape(-1, inputs.shape[-1]).to(dtype or inputs.dtype)
    bias = bias if bias is None else bias.to(flat.dtype)
    result: Tensor = torch.ops.mkldnn._linear_pointwise(flat, weight, bias, "none", [], "")
    return result.view(*inputs.shape[:-1], -1).to(inputs.dtype)
