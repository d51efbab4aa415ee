"""Activation checkpointing for the length of a pass: a layer keeps its input, and computes the rest again.

transformers does it for a layer that is in training mode and nowhere else, and drops the cache of a pass in which it
does. Engine and learner share a model, whose mode is eval. So during the learner's pass only the layers themselves are
in training mode: their parts stay in eval mode, and so does every dropout in them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.errors import UsageError

_OF_OTHER_HEADS = ("classifier", "summary")
"""Beginnings of the names of dropout that a language model's config holds for heads it has not."""


def prepare_checkpointing(model: Any) -> None:
    """Switch it on for the passes within `checkpointed`; refuse a model in which it would change what is computed."""
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
        listed = ", ".join(f"{name} is {value:g}" for name, value in dropped.items())
        raise UsageError(
            f"gradient_checkpointing would switch dropout on, and log-probs would not be the engine's: {listed}; "
            "set it to 0 in the model's config.json, or train without gradient_checkpointing"
        )
    model.activation_checkpointing_enable()


@contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """The layers of a prepared model keep only their inputs in the passes of this block. Their modes are put back."""
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
