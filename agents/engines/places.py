"""The scheduler of the torch engine's cache: it gives a place to each turn, and queues the turns that have none.

Turns get a place in the order in which they came, as long as there is room. The running rows are moved into the first
places. If they become too long for the memory, the one that was admitted last goes back to the queue.
"""

from collections import deque
from collections.abc import Sequence
from itertools import count

from palaestra.agents.engines.noise import row_key
from palaestra.agents.engines.rows import Slot
from palaestra.agents.engines.slots import SlotCache
from palaestra.errors import UsageError
from palaestra.protocols import Request

_WIDTH = 4
"""A decode step's width is a multiple of this."""


def check_request(request: Request, longest: int, cache_tokens: int | None) -> None:
    """Raise UsageError if a turn does not fit into a row of `longest` tokens, or into the cache."""
    if not request.ids or request.max_tokens < 1:
        raise UsageError(f"a request needs ids and max_tokens >= 1; got {len(request.ids)} and {request.max_tokens}")
    if len(request.ids) >= longest:
        raise UsageError(
            f"a row of {len(request.ids)} tokens and its answer are longer than the {longest} that the model takes; "
            "lower max_episode_tokens"
        )
    row_tokens = min(len(request.ids) + request.max_tokens, longest)
    if cache_tokens is not None and row_tokens >= cache_tokens:
        raise UsageError(
            f"a row may grow to {row_tokens} tokens, and cache_tokens is {cache_tokens}; it must be larger than the "
            "longest row: raise it, or lower max_episode_tokens"
        )


class CacheScheduler:
    """The places of the cache, the turns that run in them, and the queue of waiting turns."""

    def __init__(self, cache: SlotCache, slots: int, seed: int, longest: int) -> None:
        self.seed = seed
        self._cache = cache
        self._longest = longest
        self._slots = [Slot(place) for place in range(slots)]
        self._queue: deque[tuple[int, Request]] = deque()
        self._tickets = count()
        self._clock = 0

    def _forget_queued(self, ticket: int) -> None:
        self._queue = deque(entry for entry in self._queue if entry[0] != ticket)

    def _running(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.ticket is not None]

    def _requeue(self, running: Sequence[Slot]) -> None:
        """Put turns back at the front of the queue, and drop the tokens that were sampled for them."""
        for slot in sorted(running, key=lambda slot: slot.used, reverse=True):
            assert slot.ticket is not None and slot.request is not None
            self._queue.appendleft((slot.ticket, slot.request))
            slot.ticket = None

    def _admit(self) -> None:
        """Give a slot to each queued turn, while there is room.

        It is the idle slot that holds the turn's row, otherwise the one that was not used for the longest time.
        """
        if not self._queue:
            return
        running = self._running()
        idle = [slot for slot in self._slots if slot.ticket is None]
        longest, admitted = max((slot.length for slot in running), default=0), list[tuple[int, Request]]()
        while self._queue and len(admitted) < len(idle):
            # Admit in order: otherwise a long row could wait for ever behind short ones.
            longest = max(longest, len(self._queue[0][1].ids))
            if len(running) + len(admitted) >= self._cache.places_for(longest):
                break
            admitted.append(self._queue.popleft())
        homes = {slot.row: slot for slot in idle}
        chosen = [homes.pop(request.row, None) for _, request in admitted]
        used_places = {slot.place for slot in chosen if slot is not None}
        other_slots = iter(
            sorted((slot for slot in idle if slot.place not in used_places), key=lambda s: (s.used, s.place))
        )
        for slot, (ticket, request) in zip(chosen, admitted, strict=True):
            self._clock += 1
            key = row_key(self.seed, request.start.task, request.start.seed, request.turn)
            (slot or next(other_slots)).take(ticket, request, key, self._clock, self._longest)

    def _make_room(self, running: list[Slot]) -> list[Slot]:
        """Resize the cache for these rows and their next tokens. Requeue rows that do not fit; return the others."""
        if not running:
            return running
        running = sorted(running, key=lambda slot: slot.used)
        while True:
            length = max(slot.length for slot in running)
            places, room = self._cache.size_for(length, len(running))
            if len(running) <= places:
                break
            self._requeue([running.pop()])
        idle = [slot for slot in self._slots[:places] if slot.ticket is None]
        self._exchange([slot for slot in running if slot.place >= places], idle)
        if (places, room) != (self._cache.places, self._cache.room):
            for slot in self._slots:
                del slot.cached[room - 1 :]
                if slot.place >= places:
                    slot.forget()
            self._cache.resize(places, room)
        return running

    def _width(self, running: int) -> int:
        """Return the number of places that a decode step computes if `running` rows decode."""
        return min(-(-running // _WIDTH) * _WIDTH, self._cache.places)

    def _move_together(self, decoding: list[Slot], width: int) -> None:
        """Move the decoding rows into the first `width` places; the rows that were in these take their old places."""
        outside = [slot for slot in decoding if slot.place >= width]
        if not outside:
            return
        self._exchange(outside, [slot for slot in self._slots[:width] if slot.ticket is None or slot.fresh])

    def _exchange(self, outside: list[Slot], inside: list[Slot]) -> None:
        """Exchange the places of each `outside` row and one `inside` row. `inside` must not be the shorter list."""
        pairs = list(zip(outside, inside, strict=False))
        place_count = self._cache.places  # Places from this index on have no memory: a row moved there is lost.
        moves = [
            (a.place, b.place) for pair in pairs for a, b in (pair, pair[::-1]) if a.cached and b.place < place_count
        ]
        if moves:
            length = max(len(slot.cached) for pair in pairs for slot in pair)
            self._cache.copy([source for source, _ in moves], [target for _, target in moves], length)
        for out, into in pairs:
            out.place, into.place = into.place, out.place
            self._slots[out.place], self._slots[into.place] = out, into
            if into.place >= place_count:
                into.forget()
