"""Divide the passes over a batch among the ranks. A single process makes all of them.

Every rank makes the same number of passes, because all ranks take part in each pass of a sharded model. If the
micro-batches do not divide evenly, a rank repeats one, and the result of that pass is not counted.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from palaestra.trainers.learn.forward import micro_batches
from palaestra.trainers.learn.packing import Packed
from palaestra.trainers.scale.ranks import Ranks


def passes(model: Any, packed: Packed, max_tokens: int, ranks: Ranks) -> Iterator[tuple[Packed, bool]]:
    """Yield this rank's micro-batches of at most `max_tokens` tokens, smaller ones if a rank would get none.

    Each comes with a bool, which is False for a micro-batch that is not counted; its loss weights are 0.
    """
    parts, rows = micro_batches(model, packed, max_tokens), len(packed.lengths)
    while len(parts) < min(ranks.count, rows):
        max_tokens = min(max_tokens, len(packed.ids_N)) // 2
        parts = micro_batches(model, packed, max_tokens)
    for part, counts in ranks.share(parts, lambda part: len(part.ids_N)):
        yield (part if counts else replace(part, weights_N=part.weights_N * 0)), counts
