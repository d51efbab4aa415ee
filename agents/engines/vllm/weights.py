"""Passes weights to servers as safetensors files, in a folder that the servers see too.

Left out: transfers between GPUs (`transfer`).
"""

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

_KEPT = 2
"""Count of folders to keep: the newest, and the one before it, which a server may still be reading."""


class WeightFiles:
    """A temporary folder that holds the newest weights; it is removed when the process ends."""

    def __init__(self, parent: str = "") -> None:
        """`parent` is a folder that the servers see under the same path; "" means this machine's temporary folder."""
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="palaestra-weights-", dir=parent or None))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        """Remove the folder."""
        self._written: list[Path] = []

    def write(self, pairs: Iterable[tuple[str, Any]], number: int, dtype: torch.dtype) -> Path:
        """Write these weights to a new folder and return it; it gets its name when it is complete."""
        half, whole = self._folder / f"{number}.half", self._folder / str(number)
        half.mkdir()
        tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in pairs}
        save_file(tensors, half / "model.safetensors", metadata={"format": "pt"})
        half.rename(whole)
        self._written.append(whole)
        while len(self._written) > _KEPT:
            shutil.rmtree(self._written.pop(0), ignore_errors=True)
        return whole
