"""The built-in engine: a stock transformers model, one decode step for all rows at once, on any device.

A row's keys and values stay in its slot between turns, so a turn costs what it adds. Every decode step has the full
width of slots: what a row samples depends on its own noise (`noise`), never on its neighbours. Log-probs are those of
the distribution that was sampled from, temperature included; there is no top-p or top-k, for training would need its
mask.

Left out: models whose attention is not full in every layer (sliding windows, state spaces), CUDA graphs, and sharing
the prefill of equal prompts.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from palaestra.agents.engines.noise import gumbel, row_key, word_keys
from palaestra.agents.engines.slots import SlotCache
from palaestra.errors import UsageError
from palaestra.protocols import Completion, Request

_BUCKET = 1.35
"""Chunks that are prefilled together differ by at most this factor in length."""
_PREFILL_TOKENS = 16_384
"""The most padded tokens that one prefill pass holds."""


@dataclass(slots=True)
class _Slot:
    """One row of the cache: whose it is, which tokens it holds, and the turn it is decoding."""

    row: int = -1
    cached: list[int] = field(default_factory=list)
    used: int = 0
    ticket: int | None = None
    """None while the slot is idle."""
    prompt: list[int] = field(default_factory=list)
    room: int = 0
    key: int = 0
    temperature: float = 1.0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many tokens must be fed before the next can be sampled."""
        return len(self.prompt) + len(self.ids) - len(self.cached)


class TorchEngine:
    """Samples turns from a causal language model, which it may share with a trainer that steps between its calls."""

    def __init__(self, model: Any, stops: Iterable[int], *, slots: int = 96, seed: int = 0) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or {"full_attention"})
        if kinds != {"full_attention"}:
            raise UsageError(f"the torch engine serves models with full attention in every layer; this one has {kinds}")
        self.model = model.eval()
        self.version = 0
        self.seed = seed
        weight = next(model.parameters())
        self._device: torch.device = weight.device
        self._stops = frozenset(stops)
        self._head = model.get_output_embeddings()
        self._cache = SlotCache(model.config, slots, weight.dtype, weight.device)
        self._words = word_keys(self._head.weight.shape[0], weight.device)
        self._slots = [_Slot() for _ in range(slots)]
        self._queue: deque[tuple[int, Request]] = deque()
        self._tickets = count()
        self._clock = count(1)
        # What the next decode step feeds, one entry a slot; idle slots write past their length, which is harmless.
        self._last = torch.zeros(slots, dtype=torch.long, device=weight.device)
        self._lengths = torch.zeros(slots, dtype=torch.long, device=weight.device)
        self._keys = torch.zeros(slots, dtype=torch.long, device=weight.device)
        self._temperatures = torch.ones(slots, dtype=torch.float32, device=weight.device)

    def submit(self, request: Request) -> int:
        """Queue a turn."""
        if not request.ids or request.max_tokens < 1:
            raise UsageError(
                f"a request needs ids and max_tokens >= 1; got {len(request.ids)} and {request.max_tokens}"
            )
        ticket = next(self._tickets)
        self._queue.append((ticket, request))
        return ticket

    @torch.no_grad()
    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Admit what waits, sample one token for every running turn, and report the turns that ended."""
        self._admit()
        running = [i for i, slot in enumerate(self._slots) if slot.ticket is not None]
        decoding = [i for i in running if self._slots[i].missing == 1 and self._slots[i].ids]
        done = self._take(decoding, *self._decode(decoding)) if decoding else []
        for chunk in self._chunks(sorted(set(running) - set(decoding))):
            done += self._take(chunk, *self._prefill(chunk))
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
            slot.cached = []

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""

    def _admit(self) -> None:
        """Give queued turns a slot: the one where their row still lies, else the one unused for longest."""
        if not self._queue:
            return
        idle = [i for i, slot in enumerate(self._slots) if slot.ticket is None]
        admitted = [self._queue.popleft() for _ in range(min(len(idle), len(self._queue)))]
        home = {self._slots[i].row: i for i in idle}
        places = [home.pop(request.row, None) for _, request in admitted]
        strange = iter(sorted(set(idle) - set(places), key=lambda i: (self._slots[i].used, i)))
        for place, (ticket, request) in zip(places, admitted, strict=True):
            slot = self._slots[next(strange) if place is None else place]
            slot.prompt = list(request.ids)
            slot.cached = slot.cached[: _common(slot.cached, slot.prompt)] if slot.row == request.row else []
            slot.row, slot.ticket, slot.room, slot.used = request.row, ticket, request.max_tokens, next(self._clock)
            slot.key = row_key(self.seed, request.start.task, request.start.seed, request.turn)
            slot.temperature = request.temperature
            slot.ids, slot.logprobs, slot.versions = [], [], []

    def _chunks(self, fresh: Sequence[int]) -> list[list[int]]:
        """Slots whose missing tokens are of similar length, to be prefilled together."""
        chunks: list[list[int]] = []
        for index in sorted(fresh, key=lambda i: (self._slots[i].missing, i)):
            length = self._slots[index].missing
            if (
                not chunks
                or length > _BUCKET * self._slots[chunks[-1][0]].missing
                or length * (len(chunks[-1]) + 1) > _PREFILL_TOKENS
            ):
                chunks.append([])
            chunks[-1].append(index)
        return chunks

    def _prefill(self, chunk: Sequence[int]) -> tuple[list[int], list[float]]:
        """Feed what these slots miss, and sample the token after it."""
        slots = [self._slots[index] for index in chunk]
        begins, lengths = [len(slot.cached) for slot in slots], [slot.missing for slot in slots]
        ids = torch.zeros((len(chunk), max(lengths)), dtype=torch.long)
        for place, slot in enumerate(slots):
            whole = slot.prompt + slot.ids
            ids[place, : lengths[place]] = torch.tensor(whole[begins[place] :])
            slot.cached = whole
        rows = self._tensor(chunk)
        begin, length = self._tensor(begins), self._tensor(lengths)
        positions = begin[:, None] + torch.arange(ids.shape[1], device=self._device)
        hidden = self._forward(ids.to(self._device), positions, rows, max(begins) + ids.shape[1])
        self._lengths[rows] = begin + length
        self._keys[rows] = self._tensor([slot.key for slot in slots])
        self._temperatures[rows] = torch.tensor([slot.temperature for slot in slots], device=self._device)
        last = hidden[torch.arange(len(chunk), device=self._device), length - 1]
        tokens, logprobs = self._sample(last, self._keys[rows], self._lengths[rows], self._temperatures[rows])
        self._last[rows] = tokens
        return tokens.tolist(), logprobs.tolist()

    def _decode(self, decoding: Sequence[int]) -> tuple[list[int], list[float]]:
        """Feed each slot its last token, all slots at once, and sample the next."""
        rows = self._tensor(decoding)
        span = max(len(self._slots[index].cached) for index in decoding) + 1
        hidden = self._forward(self._last[:, None], self._lengths[:, None], None, span)
        for index in decoding:
            self._slots[index].cached.append(self._slots[index].ids[-1])
        self._lengths[rows] += 1
        self._last, logprobs = self._sample(hidden[:, 0], self._keys, self._lengths, self._temperatures)
        return self._last[rows].tolist(), logprobs[rows].tolist()

    def _forward(self, ids: Tensor, positions: Tensor, rows: Tensor | None, span: int) -> Tensor:
        mask = self._cache.aim(rows, positions, span)
        output = self.model.base_model(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=self._cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _sample(self, hidden: Tensor, keys: Tensor, positions: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each row and its log-probability."""
        greedy = temperatures[:, None] == 0
        logits = self._head(hidden).float() / torch.where(greedy, 1.0, temperatures[:, None])
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = torch.where(greedy, logprobs, logprobs + gumbel(keys, positions, self._words)).argmax(dim=-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]

    def _take(self, indexes: Sequence[int], tokens: list[int], logprobs: list[float]) -> list[Completion]:
        """Give the sampled tokens to their slots; the turns that ended come out."""
        done: list[Completion] = []
        for index, token, logprob in zip(indexes, tokens, logprobs, strict=True):
            slot = self._slots[index]
            assert slot.ticket is not None
            slot.ids.append(token)
            slot.logprobs.append(logprob)
            slot.versions.append(self.version)
            stopped = token in self._stops
            if stopped or len(slot.ids) >= slot.room:
                done.append(Completion(slot.ticket, slot.ids, slot.logprobs, slot.versions, cut=not stopped))
                slot.ticket = None
        return done

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _common(cached: list[int], wanted: list[int]) -> int:
    """Length of the longest common prefix, one short of all so that the last token is fed and answered."""
    limit = min(len(cached), len(wanted) - 1)
    if cached[:limit] == wanted[:limit]:
        return limit
    return next(i for i in range(limit) if cached[i] != wanted[i])
