"""The built-in engine: a stock transformers model on any device, with one decode step for all running rows at once.

A row's keys and values stay in the cache between turns, so a turn computes only its new tokens. Rows with a common
prefix compute it once (`rows`). Running rows are moved into the first places, so a decode step is only as wide as their
number and as long as the longest of them; when a row ends, its place is free at once. The words of a row depend on its
own random numbers (`noise`), not on the other rows; only the last bits of its log-probs depend on the width of the
step. The same requests in the same order give the same bits, also after `update_weights` if no turn runs.

The cache holds at most `cache_tokens` tokens. Turns wait until there is room for them. If running rows become too long
for the cache, the row that was admitted last goes back to the queue; its turn begins again and samples the same words.

It is made for CPUs, tests and reading. It runs on a GPU too, without what makes a GPU fast (captured steps, pages of
cache): there vLLM is the engine (`vllm`).

Left out: models whose attention is not full in every layer (sliding windows, state spaces); attention that reads a
common prompt once for all its rows; steps that decode some rows and prefill others; and a notice that an episode has
ended. The place of the row that was unused for the longest time is taken, even if that row only waits for a slow tool.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from palaestra.agents.engines.packed_layers import EnginePrecision, PackedLayers
from palaestra.agents.engines.places import CacheScheduler, check_request
from palaestra.agents.engines.rows import Feed, Slot, plan, prefill_chunks
from palaestra.agents.engines.sampling import SamplingSettings, sample, truncates
from palaestra.agents.engines.slots import SlotCache
from palaestra.agents.head import evaluation_mode, head_of
from palaestra.agents.heap import trim_heap
from palaestra.errors import UsageError
from palaestra.protocols import Completion, PauseMode, Request


class TorchEngine(CacheScheduler):
    """Engine that samples from a causal language model. A trainer may change the model's weights between two calls."""

    def __init__(
        self,
        model: Any,
        stops: Iterable[int],
        *,
        slots: int = 96,
        seed: int = 0,
        cache_tokens: int | None = None,
        precision: EnginePrecision = "same",
    ) -> None:
        """Limit the cache to `cache_tokens` tokens; if None, it grows up to `slots` times the longest row."""
        kinds = set(getattr(model.config, "layer_types", None) or {"full_attention"})
        if kinds != {"full_attention"}:
            raise UsageError(f"the torch engine serves models with full attention in every layer; this one has {kinds}")
        if cache_tokens is not None and cache_tokens < 2:
            raise UsageError(f"cache_tokens is {cache_tokens}; a cache holds a row of at least 2 tokens")
        self.model, self.version, self.sampled = model, 0, 0
        """`sampled` counts the tokens of cancelled turns too."""
        weight = next(model.parameters())
        cache = SlotCache(model.config, slots, weight.dtype, weight.device, cache_tokens)
        super().__init__(cache, slots, seed, getattr(model.config, "max_position_embeddings", None) or 2**31)
        self._cache_tokens = cache_tokens
        self._device: torch.device = weight.device
        self._stops = frozenset(stops)
        self._head, self._packed = head_of(model), PackedLayers(model, precision)
        self._ready: list[Completion] = []
        self._paused = self.released = False

    @property
    def shares_weights(self) -> bool:
        """Return True: the engine samples from the trainer's model."""
        return True

    @property
    def shares_memory(self) -> bool:
        """Return True: the cache is on the trainer's device."""
        return True

    @property
    def held_bytes(self) -> int:
        """Return the size of the cache in bytes."""
        return self._cache.bytes

    @property
    def busy(self) -> bool:
        """Return whether `poll` has work to do."""
        return not (self._paused or self.released) and bool(self._queue or self._running())

    def submit(self, request: Request) -> int:
        """Queue a turn and return its ticket."""
        check_request(request, self._longest, self._cache_tokens)
        ticket = next(self._tickets)
        self._queue.append((ticket, request))
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Admit waiting turns, sample for every running turn, and return the turns that ended."""
        done = self.collect()
        if not (self._paused or self.released):
            self._admit()
            done += self._step()
        return done

    def collect(self) -> list[Completion]:
        """Return the turns that ended while a pause waited for them. If this is not called, `poll` returns them."""
        done, self._ready = self._ready, []
        return done

    # Not inference_mode: a trainer cannot use the tensors that a model may keep from such a pass.
    @torch.no_grad()
    def _step(self) -> list[Completion]:
        """Sample the next token of each running turn."""
        running = self._make_room(self._running())
        fresh = sorted((slot for slot in running if slot.fresh), key=lambda slot: slot.ticket or 0)
        decoding = [slot for slot in running if not slot.fresh]
        with evaluation_mode(self.model), self._packed.used():
            done = self._decode(decoding) if decoding else []
            for feeds in plan(fresh, self._slots):
                done += self._prefill(feeds)
        return done

    def cancel(self, ticket: int) -> None:
        """Cancel a turn. The tokens that its slot has cached can still be used."""
        self._forget_queued(ticket)
        self._ready = [completion for completion in self._ready if completion.ticket != ticket]
        for slot in self._slots:
            if slot.ticket == ticket:
                slot.ticket = None

    @torch.no_grad()
    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy these weights into the model and drop all cached tokens. Running turns continue with the new weights."""
        remaining = dict(self.model.named_parameters())
        for name, tensor in tensors:
            if name not in remaining:
                raise UsageError(f"update_weights brought {name!r}, which the engine's model does not have")
            remaining.pop(name).copy_(tensor)
        if remaining:
            raise UsageError(f"update_weights must bring every parameter; missing: {', '.join(sorted(remaining)[:5])}")
        self.version = version
        for slot in self._slots:
            slot.restart()
        if not self._running():
            # A run resumed from this point has a new engine: this one must not differ from it by a bit.
            self._cache.clear()
            self._clock = 0

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop sampling until `resume`."""
        if mode == "abort":
            self._requeue(self._running())
        elif mode == "wait" and not (self._paused or self.released):
            while self._running():
                self._ready += self._step()
        self._paused = True

    def resume(self) -> None:
        """End a pause: sampling continues."""
        self._paused = False

    def release(self) -> None:
        """Free the cache. Sampling stops until `reclaim`."""
        self._requeue(self._running())
        for slot in self._slots:
            slot.forget()
        self._cache.free()
        self._packed.drop()
        trim_heap()
        self.released = True

    def reclaim(self) -> None:
        """Allow sampling after `release`. The cache grows again when rows need it."""
        self.released = False

    def close(self) -> None:
        """Do nothing: Python frees the memory with the object."""

    def _decode(self, decoding: list[Slot]) -> list[Completion]:
        """Sample the next token of each row, for all rows at once."""
        width = self._width(len(decoding))
        self._move_together(decoding, width)
        inside = self._slots[:width]
        # Idle places in between write past the end of their rows, which is harmless.
        last = self._tensor([slot.ids[-1] if slot.ids else 0 for slot in inside])
        positions = self._tensor([len(slot.cached) for slot in inside])
        settings, greedy, truncated = self._settings(inside)
        span = max(len(slot.cached) for slot in decoding) + 1
        hidden = self._forward(last[:, None], positions[:, None], range(width), span)[:, 0]
        tokens, logprobs = sample(self._head(hidden), positions + 1, settings, greedy=greedy, truncated=truncated)
        for slot in decoding:
            slot.cached.append(slot.ids[-1])
        places = [slot.place for slot in decoding]
        return self._take(decoding, tokens[places].tolist(), logprobs[places].tolist())

    def _prefill(self, feeds: list[Feed]) -> list[Completion]:
        """Copy cached prefixes to these rows, compute their other tokens, and sample the next token of each row.

        Return the turns that ended with that token.
        """
        # Set before anything is written: if a pass fails, no place claims tokens that it does not hold.
        for feed in feeds:
            feed.slot.cached = feed.whole[: feed.begin]
            for twin in feed.twins:
                twin.cached = []
        copied = [feed for feed in feeds if feed.begin and feed.source != feed.slot.place]
        if copied:
            length = max(feed.begin for feed in copied)
            self._cache.copy([feed.source for feed in copied], [feed.slot.place for feed in copied], length)
        return [completion for chunk in prefill_chunks(feeds) for completion in self._prefill_chunk(chunk)]

    def _prefill_chunk(self, chunk: list[Feed]) -> list[Completion]:
        """Prefill rows of similar length in one pass, copy each to its equal rows, and sample the next token of all."""
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
        settings, greedy, truncated = self._settings(slots)
        positions = self._tensor([len(slot.cached) for slot in slots])
        words, logprobs = sample(self._head(ends), positions, settings, greedy=greedy, truncated=truncated)
        return self._take(slots, words.tolist(), logprobs.tolist())

    def _forward(self, ids: Tensor, positions: Tensor, places: Sequence[int], span: int) -> Tensor:
        mask = self._cache.aim(places, positions, span)
        if self.model.config._attn_implementation == "eager":
            # Eager attention adds its mask; sdpa takes a boolean one. Gemma 2 has no sdpa.
            mask = torch.where(mask, 0.0, torch.finfo(self.model.dtype).min).to(self.model.dtype)
        output = self.model.base_model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _settings(self, slots: Sequence[Slot]) -> tuple[SamplingSettings, bool, bool]:
        """Return these rows' sampling settings, whether any row samples greedily, and whether any row uses top-p, top-k
        or min-p.
        """
        requests = [slot.request if slot.ticket is not None else None for slot in slots]
        settings = SamplingSettings.of([slot.key for slot in slots], requests, self._device)
        running = [request for request in requests if request is not None]
        return settings, any(request.temperature == 0 for request in running), any(map(truncates, running))

    def _take(self, slots: Sequence[Slot], tokens: list[int], logprobs: list[float]) -> list[Completion]:
        """Append the sampled tokens to their slots; return the turns that ended."""
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
