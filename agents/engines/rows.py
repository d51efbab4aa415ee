"""What the torch engine knows of each place of its cache, and which rows can copy their beginning from another's.

Eight rollouts of one prompt are one prefill and seven copies; a rollout that comes later copies from a place where the
prompt still lies, whoever works there; different prompts that begin alike (a system text, tool schemas) are prefilled
one first, the others after it from where they differ.

Left out: a store of prefixes that outlives the rows. What no place holds any more is computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from palaestra.protocols import Request

_WORTH_COPYING = 8
"""A prefix shorter than this is computed again: cheaper than looking it up."""
_WORTH_WAITING = 32
"""A row waits for another that is prefilled now, which costs a pass of its own, if it is spared this many tokens."""


@dataclass(slots=True)
class Slot:
    """One place of the cache: whose it is, which tokens lie there, and the turn it is decoding."""

    place: int
    row: int = -1
    cached: list[int] = field(default_factory=list)
    """The tokens whose keys and values lie here; of an earlier row, too, until this one is prefilled."""
    used: int = 0
    ticket: int | None = None
    """None while the slot is idle."""
    fresh: bool = False
    """The row is to be prefilled, in part at least, before it decodes."""
    home: bool = False
    """The row's own earlier turns lie here."""
    request: Request | None = None
    """The turn as it was asked for, to begin anew should it lose its place."""
    prompt: list[int] = field(default_factory=list)
    room: int = 0
    key: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, ticket: int, request: Request, key: int, used: int, longest: int) -> None:
        """Begin a turn here. What is cached stays as it is: it may be what somebody wants to copy."""
        self.home = self.row == request.row
        self.row, self.ticket, self.used, self.key, self.fresh = request.row, ticket, used, key, True
        self.request, self.prompt = request, list(request.ids)
        self.room = min(request.max_tokens, longest - len(request.ids))
        self.ids, self.logprobs, self.versions = [], [], []

    def forget(self) -> None:
        """Nothing of value lies here any more."""
        self.row, self.used, self.cached = -1, 0, []

    @property
    def length(self) -> int:
        """Tokens of the running turn's whole row, so far."""
        return len(self.prompt) + len(self.ids)


@dataclass(slots=True)
class Feed:
    """A row to prefill: `whole` from `begin` on; what is before lies at `source`. `twins` want just the same."""

    slot: Slot
    whole: list[int]
    begin: int
    source: int
    twins: list[Slot] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many tokens are to be computed."""
        return len(self.whole) - self.begin


def plan(fresh: Iterable[Slot], slots: Sequence[Slot]) -> tuple[list[Feed], list[Feed]]:
    """What to prefill first, and what after it because it begins as one of the first does."""
    found: dict[tuple[int, ...], Feed] = {}
    for slot in fresh:
        whole = slot.prompt + slot.ids
        known = found.get(tuple(whole))
        if known is None:
            found[tuple(whole)] = Feed(slot, whole, *_best_source(slot, whole, slots))
        else:
            known.twins.append(slot)
    first: list[Feed] = []
    second: list[Feed] = []
    for feed in found.values():
        lengths = [common(other.whole, feed.whole) for other in first]
        longest = max(lengths, default=0)
        if longest - feed.begin >= _WORTH_WAITING:
            feed.begin, feed.source = longest, first[lengths.index(longest)].slot.place
            second.append(feed)
        else:
            first.append(feed)
    return first, second


def common(held: list[int], wanted: list[int]) -> int:
    """Length of the longest common prefix, one short of all that is wanted: the last token is fed and answered."""
    low, high = 0, min(len(held), len(wanted) - 1)
    if held[:high] == wanted[:high]:
        return high
    while low < high:
        middle = (low + high) // 2
        if held[low : middle + 1] == wanted[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def _best_source(slot: Slot, whole: list[int], slots: Sequence[Slot]) -> tuple[int, int]:
    """How many tokens of this row are cached, and where: at home if its earlier turns are, else wherever most are."""
    begin, source = common(slot.cached, whole), slot.place
    if slot.home and begin:
        return begin, source
    for other in slots:
        length = common(other.cached, whole)
        if length >= begin + _WORTH_COPYING:
            begin, source = length, other.place
    return begin, source
