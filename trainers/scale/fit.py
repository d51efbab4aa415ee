"""A run that fits into memory: its estimate against the room there is, and what to change where there is too little.

Tried in this order, each only where the one before was not enough: a smaller cache, smaller micro-batches, activation
checkpointing, moments in 8 bits, the optimizer's state in main memory. None of it changes what is learned but by
rounding. Left out: fewer slots, shorter rows, a smaller adapter in place of the weights: these are the user's to choose,
and the error names them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from palaestra.errors import UsageError
from palaestra.trainers.checked import changed
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.memory import Estimate, Outline, estimate, outline
from palaestra.trainers.scale.room import Room

GIB = 2**30
_FEWEST_ROWS = 2
"""The cache holds at least so many rows of full length: a group that cannot be played side by side takes forever."""
_GRAIN = 1024
"""Tokens that a chosen size is a multiple of."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A config whose memory is counted."""

    config: GRPOConfig
    estimate: Estimate
    notes: tuple[str, ...] = ()
    """What was chosen."""


def fitted(config: GRPOConfig, model_config: Any, room: Room) -> Fitted:
    """The config with what it leaves open chosen so that it fits; refused where nothing fits."""
    settled = changed(config, {"precision": precision_of(config, room)})
    shape = outline(model_config, getattr(torch, settled.scale.precision))
    for choice in _choices(settled):
        if (found := _with_cache(choice, shape, room)) is not None:
            return Fitted(found, estimate(shape, found, on_gpu=room.on_gpu), _notes(settled, found))
    raise UsageError(_refusal(settled, shape, room))


def counted(config: GRPOConfig, model_config: Any, room: Room) -> Fitted:
    """The config as it is, with what it leaves open at its plainest."""
    settled = changed(config, {"precision": precision_of(config, room)})
    shape = outline(model_config, getattr(torch, settled.scale.precision))
    return Fitted(settled, estimate(shape, settled, on_gpu=room.on_gpu))


def precision_of(config: GRPOConfig, room: Room) -> str:
    """What `auto` is here."""
    asked = config.scale.precision
    return ("bfloat16" if room.on_gpu else "float32") if asked == "auto" else asked


def fits(needed: Estimate, room: Room) -> bool:
    """Whether both memories have room; one whose size is unknown has."""
    host = sum(part.size for part in needed.host)
    return (not room.device or needed.total <= room.device) and (not room.host or host <= room.host)


def _choices(config: GRPOConfig) -> Iterator[GRPOConfig]:
    """From what is asked for to what takes least."""
    scale, longest = config.scale, config.longest_row
    eight = find_spec("bitsandbytes") is not None and config.optimizer.algorithm == "adamw"
    ways: list[dict[str, Any]] = [{}]
    for name, least, possible in (
        ("gradient_checkpointing", True, True),
        ("optimizer_bits", 8, eight and not scale.lora_r),
        ("optimizer_offload", True, True),
    ):
        if possible and getattr(scale, name) is None:
            ways.append({**ways[-1], name: least})
    for way in ways:
        tokens = config.optimizer.micro_batch_tokens
        while True:
            yield changed(config, {**way, "micro_batch_tokens": tokens})
            if tokens <= longest:
                break
            tokens = max(longest, tokens // 2)


def _with_cache(config: GRPOConfig, shape: Outline, room: Room) -> GRPOConfig | None:
    """The config with the largest cache that fits, at most one for all slots; None where none fits."""
    full = config.play.slots * config.longest_row
    if config.play.cache_tokens is not None or not room.device:
        return config if fits(estimate(shape, config, on_gpu=room.on_gpu), room) else None
    least = min(full, _FEWEST_ROWS * config.longest_row)
    needed = estimate(shape, changed(config, {"cache_tokens": least}), on_gpu=room.on_gpu)
    if not fits(needed, room):
        return None
    left = room.device - sum(part.size for part in (*needed.held, *needed.playing))
    tokens = least + left // shape.cache_token()
    return changed(config, {"cache_tokens": tokens // _GRAIN * _GRAIN if least < tokens < full else min(tokens, full)})


def _notes(asked: GRPOConfig, found: GRPOConfig) -> tuple[str, ...]:
    """What was chosen, a sentence each."""
    notes = []
    if found.optimizer.micro_batch_tokens != asked.optimizer.micro_batch_tokens:
        notes.append(f"micro-batches of {found.optimizer.micro_batch_tokens:,} tokens")
    if found.scale.gradient_checkpointing and not asked.scale.gradient_checkpointing:
        notes.append("activation checkpointing")
    if found.scale.optimizer_bits == 8 and asked.scale.optimizer_bits != 8:
        notes.append("moments in 8 bits")
    if found.scale.optimizer_offload and not asked.scale.optimizer_offload:
        notes.append("the optimizer's state in main memory")
    if asked.play.cache_tokens is None and found.play.cache_tokens is not None:
        rows = found.play.cache_tokens // found.longest_row
        notes.append(f"a cache of {found.play.cache_tokens:,} tokens ({rows} rows of full length)")
    return tuple(notes)


def _refusal(config: GRPOConfig, shape: Outline, room: Room) -> str:
    """What lacks most, at the least that is possible, and the numbers to choose."""
    *_, least = _choices(config)
    least = changed(least, {"cache_tokens": min(_FEWEST_ROWS, least.play.slots) * least.longest_row})
    needed = estimate(shape, least, on_gpu=room.on_gpu)
    largest = sorted((*needed.held, *needed.learning, *needed.playing, *needed.stepping), key=lambda part: -part.size)
    listed = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in dict.fromkeys(largest[:4]))
    host = sum(part.size for part in needed.host)
    has = f"{room.name} has {room.device / GIB:.1f} GiB free"
    if room.host and host > room.host:
        has += f", and main memory {room.host / GIB:.1f} of {host / GIB:.1f} GiB that are needed there"
    remedies = []
    if not least.scale.lora_r:
        adapted = changed(least, {"lora_r": 32, "optimizer_offload": False})
        if fits(estimate(shape, adapted, on_gpu=room.on_gpu), room):
            remedies.append("--scale.lora-r 32 would fit")
    for divisor in (2, 4, 8, 16):
        shorter = changed(least, {"max_episode_tokens": least.longest_row // divisor, "cache_tokens": None})
        shorter = changed(shorter, {"micro_batch_tokens": shorter.longest_row})
        if _with_cache(shorter, shape, room) is not None:
            remedies.append(f"--play.max-episode-tokens {shorter.longest_row} would fit")
            break
    if find_spec("bitsandbytes") is None and not least.scale.lora_r:
        remedies.append("pip install 'palaestra[quantized]' allows moments in 8 bits")
    return (
        f"this run needs {needed.total / GIB:.1f} GiB at the least, and {has}; the largest parts in GiB: {listed}. "
        + ("; ".join(remedies) or "Take a smaller model, several GPUs, or a larger one")
    )
