"""Rows of tokens as a trie: what several rows begin with is laid out, and computed, once.

Rows are sorted, so those that begin alike stand together. A segment is a stretch of tokens that some rows have in
common; segments lie in depth-first order, so that all tokens that follow from a segment lie right behind it. Pure
functions of lengths and common beginnings; what attention does with a layout is `attention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 24
"""Fewest tokens that are shared: a shorter beginning costs more in calls than it saves."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that stand once for all rows that have them."""

    row: int
    """One of these rows, as sorted."""
    place: int
    """Where they begin in it."""
    begin: int
    """Where they lie in the layout."""
    size: int
    end: int
    """Behind the last token that follows from them."""
    depth: int
    """How many segments stand before it in its rows."""


@dataclass(frozen=True)
class Layout:
    """Where every token of every row lies."""

    segments: tuple[Segment, ...]
    paths: tuple[tuple[int, ...], ...]
    """Of each row as sorted, the segments that it is made of."""

    @property
    def size(self) -> int:
        """How many tokens there are, each counted once."""
        return self.segments[-1].begin + self.segments[-1].size

    @cached_property
    def places(self) -> list[NDArray[np.int64]]:
        """Of each row, where its tokens lie."""
        found = []
        for path in self.paths:
            stretches = [(self.segments[i].begin, self.segments[i].size) for i in path]
            found.append(np.concatenate([np.arange(begin, begin + size) for begin, size in stretches]))
        return found


def in_order(rows: Sequence[NDArray[Any]]) -> tuple[list[int], list[int]]:
    """An order in which rows that begin alike are neighbours, and how many tokens each shares with the one before."""
    # As bytes, largest first, they compare as numbers do and much faster.
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">i8").tobytes())
    commons = [0] + [_common(rows[a], rows[b]) for a, b in pairwise(order)]
    return order, [common if common >= LEAST else 0 for common in commons]


def lay_out(lengths: Sequence[int], commons: Sequence[int]) -> Layout:
    """The trie of rows in order; no length is 0."""
    found: list[tuple[int, int, int, int, int, int]] = []
    paths: list[list[int]] = [[] for _ in lengths]
    waiting = _alike(commons, 0, len(lengths), 0, 0)
    total = 0
    while waiting:
        first, last, place, depth = waiting.pop()
        size = (min(commons[first + 1 : last]) if last - first > 1 else lengths[first]) - place
        if not size:
            continue  # The row ends where others go on.
        for row in range(first, last):
            paths[row].append(len(found))
        found.append((first, place, total, size, last, depth))
        total += size
        if last - first > 1:
            waiting += _alike(commons, first, last, place + size, depth + 1)
    ends = [found[path[-1]][2] + found[path[-1]][3] for path in paths]
    segments = (
        Segment(row, place, begin, size, ends[last - 1], depth) for row, place, begin, size, last, depth in found
    )
    return Layout(tuple(segments), tuple(map(tuple, paths)))


def parts(lengths: Sequence[int], commons: Sequence[int], most: int) -> list[range]:
    """Rows in order, in parts that hold at most `most` tokens each counted once; a longer row stands alone.

    Rows that begin alike stay together where they fit into a part at all.
    """

    def fits(first: int, last: int) -> bool:
        return lay_out(lengths[first:last], [0, *commons[first + 1 : last]]).size <= most

    found: list[range] = []
    waiting = [(0, len(lengths))]
    while waiting:
        first, last = waiting.pop()
        if last - first > 1 and not fits(first, last):
            least = min(commons[first + 1 : last])
            cuts = [i for i in range(first + 1, last) if commons[i] == least]
            waiting += list(zip([first, *cuts], [*cuts, last], strict=True))[::-1]
        elif found and fits(found[-1].start, last):
            found[-1] = range(found[-1].start, last)
        else:
            found.append(range(first, last))
    return found


def _alike(commons: Sequence[int], first: int, last: int, place: int, depth: int) -> list[tuple[int, int, int, int]]:
    """Runs of rows that have enough in common beyond `place`, the last one first."""
    cuts = [i for i in range(first + 1, last) if commons[i] < place + LEAST]
    return [(a, b, place, depth) for a, b in zip([first, *cuts], [*cuts, last], strict=True)][::-1]


def _common(one: NDArray[Any], other: NDArray[Any]) -> int:
    size = min(len(one), len(other))
    differing = np.flatnonzero(one[:size] != other[:size])
    return int(differing[0]) if len(differing) else size
