"""Activation checkpointing during a pass: a layer stores only its input, and recomputes the rest for the backward pass.

transformers checkpoints only layers in training mode, and then drops the KV cache of the pass. Engine and learner share
a model in eval mode. So during the learner's pass only the layers themselves are in training mode; their submodules,
and so every dropout in them, stay in eval mode.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.errors import UsageError

_OF_OTHER_HEADS = ("classifier", "summary")
"""Prefixes of dropout settings for heads that a language model does not have."""


def prepare_checkpointing(model: Any) -> None:
    """Enable checkpointing within `checkpointed`. Raise `UsageError` if it would change the results of the model."""
    if not _layers(model):
        raise UsageError(
            f"{type(model).__name__} has no layers that transformers can checkpoint; train without "
            "gradient_checkpointing"
        )
    dropped = {
        name: value
        for name, value in model.config.get_text_config().to_dict().items()
        if "drop" in name and isinstance(value, float) and value > 0 and not name.startswith(_OF_OTHER_HEADS)
    }
    if dropped:
        settings = ", ".join(f"{name} is {value:g}" for name, value in dropped.items())
        raise UsageError(
            f"gradient_checkpointing would switch dropout on, and log-probs would not be the engine's: {settings}; "
            "set it to 0 in the model's config.json, or train without gradient_checkpointing"
        )
    model.activation_checkpointing_enable()


@contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """Checkpoint the layers of a prepared model in the passes of this block, then restore their modes."""
    modes = [(layer, layer.training) for layer in _layers(model)]
    try:
        for layer, _ in modes:
            layer.training = True
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
