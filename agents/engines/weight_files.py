"""Weights on their way to an engine's process: a file for each tensor, so that one tensor at a time is held.

A trainer whose weights are sharded gathers a tensor when it is asked for the next one.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from palaestra.errors import UsageError


def expected(tensors: Iterable[tuple[str, Any]], names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield weights by name. Raise UsageError for a name that the engine's model does not have, and at the end if one
    of its names was missing.
    """
    missing = set(names)
    for name, tensor in tensors:
        if name not in names:
            raise UsageError(f"update_weights brought {name!r}, which the engine's model does not have")
        missing.discard(name)
        yield name, tensor
    if missing:
        raise UsageError(f"update_weights must bring every parameter; missing: {', '.join(sorted(missing)[:5])}")


def write_each(tensors: Iterable[tuple[str, Any]], folder: Path, dtype: torch.dtype | None = None) -> Path:
    """Write each tensor to a safetensors file of its own in a new folder, and return the folder."""
    folder.mkdir()
    for number, (name, tensor) in enumerate(tensors):
        written = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        save_file({name: written}, folder / f"{number:05}.safetensors", metadata={"format": "pt"})
    return folder


def read_each(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that `write_each` wrote, in its order."""
    for file in sorted(folder.iterdir()):
        yield from load_file(file).items()
