"""Divide the forward and backward passes over a batch among the ranks. A single process makes all passes.

Every rank makes the same number of passes, because all ranks take part in each pass of a sharded model. If the number
of micro-batches is not divisible by the ranks, a rank repeats one of them, and that pass is not counted.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from palaestra.trainers.learn.forward import micro_batches
from palaestra.trainers.learn.packing import Packed
from palaestra.trainers.learn.sequence_parallel import sequence_group
from palaestra.trainers.scale.ranks import Ranks


def passes(model: Any, packed: Packed, max_tokens: int, ranks: Ranks) -> Iterator[tuple[Packed, bool]]:
    """Yield this rank's micro-batches of at most `max_tokens` tokens. They are smaller if a rank would get none.

    Each comes with a bool, which is False if its figures are not counted here: its loss weights are then 0, or another
    rank that computes the same rows counts them.
    """
    together = sequence_group(model)
    ranks = ranks if together is None else together.ranks
    parts, rows = micro_batches(model, packed, max_tokens), len(packed.lengths)
    while len(parts) < min(ranks.count, rows):
        max_tokens = min(max_tokens, len(packed.ids_N)) // 2
        parts = micro_batches(model, packed, max_tokens)
    for part, counts in ranks.share(parts, lambda part: len(part.ids_N)):
        first = together is None or together.place == 0
        yield (part if counts else replace(part, weights_N=part.weights_N * 0)), counts and first
