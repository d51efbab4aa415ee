"""Token rows as a trie: a prefix that several rows share is stored and computed only once.

Rows are sorted, so rows with a common prefix are neighbours. A segment is a sequence of tokens that is stored once for
all rows that contain it. Segments are in depth-first order, so all tokens that follow a segment in some row come
directly after it. All functions of this module are pure. Attention over a layout is in `prefix_attention`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 24
"""Smallest number of tokens that are shared: a shorter prefix costs more in kernel calls than it saves."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that are stored once for all rows that contain them."""

    row: int
    """Index of one of these rows, in sorted order."""
    place: int
    """Index of the segment's first token within the row."""
    begin: int
    """Index of the segment's first token within the layout."""
    size: int
    end: int
    """Index after the last token that follows from this segment."""
    depth: int
    """Number of segments before it in its rows."""


@dataclass(frozen=True)
class Layout:
    """The order in which the tokens of all rows are stored, each shared token only once."""

    segments: tuple[Segment, ...]
    paths: tuple[tuple[int, ...], ...]
    """Segment indices of each row, in sorted order of the rows."""

    @property
    def size(self) -> int:
        """Return the number of stored tokens. A shared token counts once."""
        return self.segments[-1].begin + self.segments[-1].size

    @cached_property
    def places(self) -> list[NDArray[np.int64]]:
        """Return for each row the positions of its tokens in the layout."""
        places_by_row = []
        for path in self.paths:
            stretches = [(self.segments[i].begin, self.segments[i].size) for i in path]
            places_by_row.append(np.concatenate([np.arange(begin, begin + size) for begin, size in stretches]))
        return places_by_row


def in_order(rows: Sequence[NDArray[Any]]) -> tuple[list[int], list[int]]:
    """Return an order in which rows with a common prefix are neighbours, and for each row the length of the prefix that
    it shares with the row before, or 0 if that is shorter than `LEAST`.
    """
    # Big-endian bytes sort like the numbers, and much faster.
    order = sorted(range(len(rows)), key=lambda i: rows[i].astype(">i8").tobytes())
    commons = [0] + [_common(rows[a], rows[b]) for a, b in pairwise(order)]
    return order, [common if common >= LEAST else 0 for common in commons]


def lay_out(lengths: Sequence[int], commons: Sequence[int]) -> Layout:
    """Return the layout of sorted rows from their lengths, none of which may be 0, and `commons` of `in_order`."""
    spans: list[tuple[int, int, int, int, int, int]] = []
    paths: list[list[int]] = [[] for _ in lengths]
    pending = _shared_spans(commons, 0, len(lengths), 0, 0)
    total = 0
    while pending:
        first, last, place, depth = pending.pop()
        size = (min(commons[first + 1 : last]) if last - first > 1 else lengths[first]) - place
        if not size:
            continue  # The row ends where others continue.
        for row in range(first, last):
            paths[row].append(len(spans))
        spans.append((first, place, total, size, last, depth))
        total += size
        if last - first > 1:
            pending += _shared_spans(commons, first, last, place + size, depth + 1)
    ends = [spans[path[-1]][2] + spans[path[-1]][3] for path in paths]
    segments = (
        Segment(row, place, begin, size, ends[last - 1], depth) for row, place, begin, size, last, depth in spans
    )
    return Layout(tuple(segments), tuple(map(tuple, paths)))


def parts(lengths: Sequence[int], commons: Sequence[int], max_tokens: int) -> list[range]:
    """Split sorted rows into parts of at most `max_tokens` tokens. A shared token counts once.

    A row that is longer than that is alone in its part. Rows with a common prefix stay together if they fit.
    """

    def fits(first: int, last: int) -> bool:
        return lay_out(lengths[first:last], [0, *commons[first + 1 : last]]).size <= max_tokens

    ranges: list[range] = []
    pending = [(0, len(lengths))]
    while pending:
        first, last = pending.pop()
        if last - first > 1 and not fits(first, last):
            least = min(commons[first + 1 : last])
            cuts = [i for i in range(first + 1, last) if commons[i] == least]
            pending += list(zip([first, *cuts], [*cuts, last], strict=True))[::-1]
        elif ranges and fits(ranges[-1].start, last):
            ranges[-1] = range(ranges[-1].start, last)
        else:
            ranges.append(range(first, last))
    return ranges


def _shared_spans(
    commons: Sequence[int], first: int, last: int, place: int, depth: int
) -> list[tuple[int, int, int, int]]:
    """Return the groups of neighbouring rows that share `LEAST` or more tokens from `place` on, last group first."""
    cuts = [i for i in range(first + 1, last) if commons[i] < place + LEAST]
    return [(a, b, place, depth) for a, b in zip([first, *cuts], [*cuts, last], strict=True)][::-1]


def _common(first: NDArray[Any], other: NDArray[Any]) -> int:
    size = min(len(first), len(other))
    differing = np.flatnonzero(first[:size] != other[:size])
    return int(differing[0]) if len(differing) else size
