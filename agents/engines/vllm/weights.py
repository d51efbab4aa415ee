"""Give weights to servers as safetensors files in a folder that they can read too, and check what they have loaded.

Left out: transfers between GPUs (`transfer`).
"""

import shutil
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from palaestra.agents.engines.vllm.replica import LOAD_SECONDS, Replica, RequestRejected
from palaestra.agents.engines.weight_files import write_each

_HEAD_GAP = 1e-3
"""Largest difference of an output head from its weights; in bfloat16 on a CPU the head is exact too."""
_KEPT_FOLDERS = 2
"""Number of folders to keep: the newest, and the one before it, which a server may still be reading."""


class WeightFiles:
    """A temporary folder that holds the newest weights; it is removed when the process ends."""

    def __init__(self, parent: str = "") -> None:
        """`parent` is a folder that the servers read under the same path; "" is this computer's temporary folder."""
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="palaestra-weights-", dir=parent or None))
        self.close = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        """Remove the folder."""
        self._folders: list[Path] = []

    def write(self, pairs: Iterable[tuple[str, Any]], number: int, dtype: torch.dtype) -> Path:
        """Write these weights to a new folder and return it. The folder gets its final name when it is complete."""
        half, whole = self._folder / f"{number}.half", self._folder / str(number)
        write_each(pairs, half, dtype).rename(whole)
        self._folders.append(whole)
        while len(self._folders) > _KEPT_FOLDERS:
            shutil.rmtree(self._folders.pop(0), ignore_errors=True)
        return whole


def from_files(folder: Path) -> Callable[[Replica], Awaitable[None]]:
    """Return a function that makes a server load the weights in a folder, and checks that its output head uses them."""

    async def give(replica: Replica) -> None:
        results = await replica.call("palaestra_load", LOAD_SECONDS, folder=str(folder))
        worst = max(float(result.get("head_gap", float("inf"))) for result in results)
        if not worst <= _HEAD_GAP:
            raise RequestRejected(
                f"{replica.url} took the weights, and its output head differs from them by {worst:.3g}"
            )

    return give
