"""The built-in engine: a stock transformers model, one decode step for all running rows at once, on any device.

A row's keys and values stay in its place of the cache between turns, so a turn costs what it adds. Rows that begin
alike share the prefill (`rows`). Running rows are moved together, so that a decode step is as wide as they are many and
spans the longest of them; a row that ends makes room at once. What a row samples depends on its own noise (`noise`),
never on its neighbours; only the last bits of its log-probs know how wide the step was. The same requests in the same
order give the same bits, and `update_weights` between turns leaves nothing behind: the engine is as new.
Log-probs are those of the distribution that was sampled from, temperature included; there is no top-p or top-k, for
training would need its mask.

Left out: models whose attention is not full in every layer (sliding windows, state spaces); CUDA graphs; attention that
reads a shared prompt once for all its rows; steps that decode some rows and prefill others; and word of episodes that
have ended, so that the place of the row unused for longest is taken, though its tool may only be slow.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from palaestra.agents.engines.noise import gumbel, row_key, word_keys
from palaestra.agents.engines.rows import Feed, Slot, plan
from palaestra.agents.engines.slots import SlotCache
from palaestra.agents.head import head_of
from palaestra.errors import UsageError
from palaestra.protocols import Completion, PauseMode, Request

_WIDTH = 4
"""A decode step's width is a multiple of this."""
_BUCKET = 1.35
"""Chunks that are prefilled together differ by at most this factor in length."""
_PREFILL_TOKENS = 16_384
"""The most padded tokens that one prefill pass holds."""


class TorchEngine:
    """Samples turns from a causal language model, which it may share with a trainer that steps between its calls."""

    def __init__(self, model: Any, stops: Iterable[int], *, slots: int = 96, seed: int = 0) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or {"full_attention"})
        if kinds != {"full_attention"}:
            raise UsageError(f"the torch engine serves models with full attention in every layer; this one has {kinds}")
        self.model = model.eval()
        self.version = 0
        self.sampled = 0
        """Tokens, those of cancelled turns too."""
        self.seed = seed
        weight = next(model.parameters())
        self._device: torch.device = weight.device
        self._stops = frozenset(stops)
        self._head = head_of(model)
        self._cache = SlotCache(model.config, slots, weight.dtype, weight.device)
        self._words = word_keys(self._head.layer.weight.shape[0], weight.device)
        self._slots = [Slot(place) for place in range(slots)]
        self._queue: deque[tuple[int, Request]] = deque()
        self._tickets = count()
        self._clock = 0
        self._ready: list[Completion] = []
        self._paused = False

    @property
    def shares_weights(self) -> bool:
        """It samples from the model that it was given."""
        return True

    def submit(self, request: Request) -> int:
        """Queue a turn."""
        if not request.ids or request.max_tokens < 1:
            raise UsageError(
                f"a request needs ids and max_tokens >= 1; got {len(request.ids)} and {request.max_tokens}"
            )
        ticket = next(self._tickets)
        self._queue.append((ticket, request))
        return ticket

    # Not inference_mode: a model that keeps a tensor of its pass would hand it to the trainer, who could not use it.
    @torch.no_grad()
    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Admit what waits, sample one token for every running turn, and report the turns that ended."""
        done, self._ready = self._ready, []
        if self._paused:
            return done
        self._admit()
        running = [slot for slot in self._slots if slot.ticket is not None]
        fresh = sorted((slot for slot in running if slot.fresh), key=lambda slot: slot.ticket or 0)
        decoding = [slot for slot in running if not slot.fresh]
        done += self._decode(decoding) if decoding else []
        for feeds in plan(fresh, self._slots):
            done += self._prefill(feeds)
        return done

    def cancel(self, ticket: int) -> None:
        """Forget a turn; what its slot holds stays usable."""
        self._queue = deque(entry for entry in self._queue if entry[0] != ticket)
        for slot in self._slots:
            if slot.ticket == ticket:
                slot.ticket = None

    @torch.no_grad()
    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy the weights in and drop the caches; running turns go on with the new weights."""
        own = dict(self.model.named_parameters())
        for name, tensor in tensors:
            if name not in own:
                raise UsageError(f"update_weights brought {name!r}, which the engine's model does not have")
            own.pop(name).copy_(tensor)
        if own:
            raise UsageError(f"update_weights must bring every parameter; missing: {', '.join(sorted(own)[:5])}")
        self.version = version
        for slot in self._slots:
            slot.cached, slot.fresh = [], True
            if slot.ticket is None:
                slot.row, slot.used = -1, 0
        if all(slot.ticket is None for slot in self._slots):
            # A run that is resumed here has an engine that never played: this one must not differ from it by a bit.
            self._cache.clear()
            self._clock = 0

    def pause(self, mode: PauseMode = "keep") -> None:
        """Sample nothing more until `resume`."""
        while mode == "wait" and any(slot.ticket is not None for slot in self._slots):
            self._ready += self.poll()
        self._paused = True

    def resume(self) -> None:
        """Sample again."""
        self._paused = False

    def release(self) -> None:
        """The cache stays as it is."""

    def reclaim(self) -> None:
        """The cache grows as it is needed."""

    def health(self) -> str:
        """Nothing can be wrong with a model in this process that its next pass would not say."""
        return ""

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""

    def _admit(self) -> None:
        """Give queued turns a slot: the one where their row still lies, else the one unused for longest."""
        if not self._queue:
            return
        idle = [slot for slot in self._slots if slot.ticket is None]
        admitted = [self._queue.popleft() for _ in range(min(len(idle), len(self._queue)))]
        homes = {slot.row: slot for slot in idle}
        chosen = [homes.pop(request.row, None) for _, request in admitted]
        taken = {slot.place for slot in chosen if slot is not None}
        strange = iter(sorted((slot for slot in idle if slot.place not in taken), key=lambda s: (s.used, s.place)))
        for slot, (ticket, request) in zip(chosen, admitted, strict=True):
            self._clock += 1
            key = row_key(self.seed, request.start.task, request.start.seed, request.turn)
            (slot or next(strange)).take(ticket, request, key, self._clock)

    def _decode(self, decoding: list[Slot]) -> list[Completion]:
        """Feed each row its last token, all rows at once, and sample the next."""
        width = self._width(len(decoding))
        self._move_together(decoding, width)
        inside = self._slots[:width]
        span = max(len(slot.cached) for slot in decoding) + 1
        # Idle places in between write behind their rows, which is harmless.
        last = self._tensor([slot.ids[-1] if slot.ids else 0 for slot in inside])
        positions = self._tensor([len(slot.cached) for slot in inside])
        hidden = self._forward(last[:, None], positions[:, None], range(width), span)
        for slot in decoding:
            slot.cached.append(slot.ids[-1])
        tokens, logprobs = self._sample(hidden[:, 0], inside, positions + 1)
        places = [slot.place for slot in decoding]
        return self._take(decoding, [tokens[place] for place in places], [logprobs[place] for place in places])

    def _width(self, running: int) -> int:
        """How many places a decode step of this many rows computes."""
        return min(-(-running // _WIDTH) * _WIDTH, len(self._slots))

    def _move_together(self, decoding: list[Slot], width: int) -> None:
        """Bring the rows that decode into the first `width` places, in exchange for those that do not."""
        outside = [slot for slot in decoding if slot.place >= width]
        if not outside:
            return
        busy = {slot.place for slot in decoding}
        inside = [slot for slot in self._slots[:width] if slot.place not in busy][: len(outside)]
        moves = [
            (a.place, b.place) for pair in zip(outside, inside, strict=True) for a, b in (pair, pair[::-1]) if a.cached
        ]
        length = max(len(slot.cached) for slot in (*outside, *inside))
        self._cache.copy([source for source, _ in moves], [target for _, target in moves], length)
        for out, into in zip(outside, inside, strict=True):
            out.place, into.place = into.place, out.place
            self._slots[out.place], self._slots[into.place] = out, into

    def _prefill(self, feeds: list[Feed]) -> list[Completion]:
        """Give these rows what others hold of them, compute the rest, and sample the token after it."""
        # Said before anything is written: should a pass fail, no place claims what it does not hold.
        for feed in feeds:
            feed.slot.cached = feed.whole[: feed.begin]
            for twin in feed.twins:
                twin.cached = []
        copied = [feed for feed in feeds if feed.begin and feed.source != feed.slot.place]
        if copied:
            length = max(feed.begin for feed in copied)
            self._cache.copy([feed.source for feed in copied], [feed.slot.place for feed in copied], length)
        return [completion for chunk in _chunks(feeds) for completion in self._prefill_chunk(chunk)]

    def _prefill_chunk(self, chunk: list[Feed]) -> list[Completion]:
        """One pass over rows of similar length; their twins get a copy."""
        longest = max(feed.missing for feed in chunk)
        ids = self._tensor([feed.whole[feed.begin :] + [0] * (longest - feed.missing) for feed in chunk])
        begin = self._tensor([feed.begin for feed in chunk])
        positions = begin[:, None] + torch.arange(longest, device=self._device)
        span = max(feed.begin for feed in chunk) + longest
        hidden = self._forward(ids, positions, [feed.slot.place for feed in chunk], span)
        pairs = [(feed.slot.place, twin.place) for feed in chunk for twin in feed.twins]
        if pairs:
            length = max(len(feed.whole) for feed in chunk if feed.twins)
            self._cache.copy([source for source, _ in pairs], [target for _, target in pairs], length)
        slots, lines = [], []
        for line, feed in enumerate(chunk):
            for slot in (feed.slot, *feed.twins):
                slot.cached, slot.fresh = list(feed.whole), False
                slots.append(slot)
                lines.append(line)
        last = self._tensor([feed.missing - 1 for feed in chunk])
        ends = hidden[torch.arange(len(chunk), device=self._device), last][self._tensor(lines)]
        return self._take(slots, *self._sample(ends, slots, self._tensor([len(slot.cached) for slot in slots])))

    def _forward(self, ids: Tensor, positions: Tensor, places: Sequence[int], span: int) -> Tensor:
        mask = self._cache.aim(places, positions, span)
        if self.model.config._attn_implementation == "eager":
            # It adds its mask, where sdpa chooses by it. Gemma 2 has no sdpa.
            mask = torch.where(mask, 0.0, torch.finfo(self.model.dtype).min).to(self.model.dtype)
        output = self.model.base_model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _sample(self, hidden: Tensor, slots: Sequence[Slot], positions: Tensor) -> tuple[list[int], list[float]]:
        """The next token of each row and its log-probability."""
        temperatures = torch.tensor([[slot.temperature] for slot in slots], device=self._device)
        greedy = temperatures == 0
        logits = self._head(hidden) / torch.where(greedy, 1.0, temperatures)
        logprobs = torch.log_softmax(logits, dim=-1)
        scores = gumbel(self._tensor([slot.key for slot in slots]), positions, self._words).add_(logprobs)
        if any(slot.temperature == 0 for slot in slots):
            scores = torch.where(greedy, logprobs, scores)
        tokens = scores.argmax(dim=-1)
        return tokens.tolist(), logprobs.gather(1, tokens[:, None])[:, 0].tolist()

    def _take(self, slots: Sequence[Slot], tokens: list[int], logprobs: list[float]) -> list[Completion]:
        """Give the sampled tokens to their slots; the turns that ended come out."""
        self.sampled += len(slots)
        done: list[Completion] = []
        for slot, token, logprob in zip(slots, tokens, logprobs, strict=True):
            assert slot.ticket is not None
            slot.ids.append(token)
            slot.logprobs.append(logprob)
            slot.versions.append(self.version)
            stopped = token in self._stops
            if stopped or len(slot.ids) >= slot.room:
                done.append(Completion(slot.ticket, slot.ids, slot.logprobs, slot.versions, cut=not stopped))
                slot.ticket = None
        return done

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _chunks(feeds: Iterable[Feed]) -> list[list[Feed]]:
    """Rows that miss about the same number of tokens, to be prefilled together."""
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
