"""The passes over a batch that this rank makes. One process makes them all.

Every rank makes as many as any other, for in each pass of a divided model all take part; where the parts do not come
out even, a rank repeats one, and what it finds then counts nowhere.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from palaestra.trainers.forward import micro_batches
from palaestra.trainers.packed import Packed
from palaestra.trainers.scale.ranks import Ranks


def passes(model: Any, packed: Packed, max_tokens: int, ranks: Ranks) -> Iterator[tuple[Packed, bool]]:
    """Parts of at most `max_tokens` tokens, with fewer where a rank would be left without one.

    False stands beside a part that counts nowhere; its tokens weigh nothing.
    """
    parts, rows = micro_batches(model, packed, max_tokens), len(packed.lengths)
    while len(parts) < min(ranks.count, rows):
        max_tokens = min(max_tokens, len(packed.ids_N)) // 2
        parts = micro_batches(model, packed, max_tokens)
    for part, counts in ranks.share(parts, lambda part: len(part.ids_N)):
        yield (part if counts else replace(part, weights_N=part.weights_N * 0)), counts
