"""The state of each place of the torch engine's cache, and the plan which rows copy their prefix from another place.

Eight rollouts of one prompt need one prefill and seven copies. A later rollout copies from a place that still holds the
prompt, even if another row runs in it. If different prompts have a common prefix (a system text, tool schemas), one is
prefilled first; the others copy the prefix from it, and only their remaining tokens are computed.

Left out: a store that keeps prefixes longer than their rows. A prefix that no place holds is computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from palaestra.protocols import Request

_WORTH_COPYING = 8
"""Minimum number of tokens of a prefix that is copied; a shorter one is computed again, which is cheaper."""
_BUCKET = 1.35
"""Maximum ratio between the longest and the shortest chunk that are prefilled together."""
_PREFILL_TOKENS = 16_384
"""Maximum number of padded tokens in one prefill pass."""
_WORTH_WAITING = 32
"""Minimum number of tokens that a row must save to be prefilled in a second pass, after a row with the same prefix."""


@dataclass(slots=True)
class Slot:
    """One place of the cache: its row, its cached tokens, and the turn that it decodes."""

    place: int
    row: int = -1
    cached: list[int] = field(default_factory=list)
    """Tokens whose keys and values are cached here; those of an earlier row until this row is prefilled."""
    used: int = 0
    ticket: int | None = None
    """Ticket of the running turn; None while the slot is idle."""
    fresh: bool = False
    """True if the row must be prefilled, at least in part, before it decodes."""
    home: bool = False
    """True if earlier turns of the same row are cached here."""
    request: Request | None = None
    """The original request, to begin again if the turn loses its place."""
    prompt: list[int] = field(default_factory=list)
    room: int = 0
    key: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, ticket: int, request: Request, key: int, used: int, longest: int) -> None:
        """Begin a turn in this slot. Its cached tokens stay until the prefill: another row may copy them."""
        self.home = self.row == request.row
        self.row, self.ticket, self.used, self.key, self.fresh = request.row, ticket, used, key, True
        self.request, self.prompt = request, list(request.ids)
        self.room = min(request.max_tokens, longest - len(request.ids))
        self.ids, self.logprobs, self.versions = [], [], []

    def forget(self) -> None:
        """Mark the slot as empty: it holds no row and no cached tokens."""
        self.row, self.used, self.cached = -1, 0, []

    def restart(self) -> None:
        """Drop the cached tokens, and the row unless a turn of it runs: that turn is prefilled again."""
        self.cached, self.fresh = [], True
        if self.ticket is None:
            self.forget()

    @property
    def length(self) -> int:
        """Return the number of tokens of the row: its prompt and the tokens of the running turn so far."""
        return len(self.prompt) + len(self.ids)


@dataclass(slots=True)
class Feed:
    """A row to prefill: the tokens of `whole` from index `begin` on. The place `source` has cached the earlier tokens.

    `twins` are the slots of rows with the same tokens, which get a copy.
    """

    slot: Slot
    whole: list[int]
    begin: int
    source: int
    twins: list[Slot] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Return the number of tokens to compute."""
        return len(self.whole) - self.begin


def plan(fresh: Iterable[Slot], slots: Sequence[Slot]) -> tuple[list[Feed], list[Feed]]:
    """Return the rows to prefill first, and the rows to prefill second, which copy a prefix from one of the first."""
    feeds: dict[tuple[int, ...], Feed] = {}
    for slot in fresh:
        whole = slot.prompt + slot.ids
        twin_feed = feeds.get(tuple(whole))
        if twin_feed is None:
            feeds[tuple(whole)] = Feed(slot, whole, *_best_source(slot, whole, slots))
        else:
            twin_feed.twins.append(slot)
    first: list[Feed] = []
    second: list[Feed] = []
    for feed in feeds.values():
        lengths = [common(other.whole, feed.whole) for other in first]
        longest = max(lengths, default=0)
        if longest - feed.begin >= _WORTH_WAITING:
            feed.begin, feed.source = longest, first[lengths.index(longest)].slot.place
            second.append(feed)
        else:
            first.append(feed)
    return first, second


def common(cached: list[int], whole: list[int]) -> int:
    """Return the length of the longest common prefix, at most len(whole) - 1: the last token must be computed."""
    low, high = 0, min(len(cached), len(whole) - 1)
    if cached[:high] == whole[:high]:
        return high
    while low < high:
        middle = (low + high) // 2
        if cached[low : middle + 1] == whole[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def _best_source(slot: Slot, whole: list[int], slots: Sequence[Slot]) -> tuple[int, int]:
    """Return how many tokens of this row are cached, and in which place.

    This is the slot's own place if it holds earlier turns of the row, otherwise the place with the most tokens.
    """
    begin, source = common(slot.cached, whole), slot.place
    if slot.home and begin:
        return begin, source
    for other in slots:
        length = common(other.cached, whole)
        if length >= begin + _WORTH_COPYING:
            begin, source = length, other.place
    return begin, source


def prefill_chunks(feeds: Iterable[Feed]) -> list[list[Feed]]:
    """Group rows that have a similar number of tokens to compute; each group is prefilled in one pass."""
    chunks: list[list[Feed]] = []
    for feed in sorted(feeds, key=lambda feed: feed.missing):
        if (
            not chunks
            or feed.missing > _BUCKET * chunks[-1][0].missing
            or feed.missing * (len(chunks[-1]) + 1) > _PREFILL_TOKENS
        ):
            chunks.append([])
        chunks[-1].append(feed)
    return chunks
