"""Fit a run into memory: compare its estimate with the available memory, and change settings if there is too little.

The changes are tried in this order until the run fits: a smaller cache, smaller micro-batches, gradients summed over
the ranks in each pass, activation checkpointing, moments in 8 bits, the optimizer state in main memory. They change the
training only by rounding. Left out: fewer slots, shorter rows, or an adapter in place of the weights: the user decides
on these, and the error names them.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from palaestra.agents.adapters import base_name, is_adapter
from palaestra.agents.known_models import located
from palaestra.agents.local_model import find_device
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.scale.available_memory import Room, amount, free_disk, room_of
from palaestra.trainers.scale.memory_estimate import FLOAT, MOMENTS, MemoryEstimate, Outline, estimate, outline
from palaestra.trainers.validation import changed

_FEWEST_ROWS = 2
"""Smallest size of the cache, in rows of full length. With fewer rows the episodes of a group could not overlap."""
_GRAIN = 1024
"""Chosen cache sizes are multiples of this, in tokens."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A config with its memory estimate."""

    config: GRPOConfig
    estimate: MemoryEstimate
    notes: tuple[str, ...] = ()
    """Description of each setting that was chosen."""


def fit(config: GRPOConfig, folder: Path, ranks: int = 1) -> tuple[GRPOConfig, str]:
    """Return the config of a run, fitted into memory, and a message about it; "" if there is nothing to report.

    If the config of the model cannot be read, the run config is returned unchanged: loading the model reports why.
    """
    try:
        # The config of an adapter is that of its base model.
        name = base_name(Path(config.model)) if is_adapter(Path(config.model)) else located(config.model)
        model_config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError):
        return config, ""
    room = replace(room_of(find_device(config.device)), ranks=ranks)
    chooses = room.on_gpu if config.scale.fit is None else config.scale.fit
    result = (fitted if chooses else counted)(config, model_config, room)
    if not fits(result.estimate, room):
        raise UsageError(refusal(result.config, model_config, room))
    needed = disk_bytes(result.config, model_config)
    if needed > (free := free_disk(folder)):
        raise UsageError(
            f"this run writes up to {amount(needed)} (checkpoints, models), and the disk of {folder} has "
            f"{amount(free)} free; choose another folder with --run, or lower --save.keep-checkpoints"
        )
    if not (result.notes or room.on_gpu):
        return result.config, ""
    text = f"memory: {amount(result.estimate.total)} of {amount(room.device)} on {room.name}"
    return result.config, ", ".join((text, *result.notes))


def disk_bytes(config: GRPOConfig, model_config: Any) -> int:
    """Return how many bytes a run may need on disk: for its checkpoints, one more during a save, and its models."""
    shape = outline(model_config, config.scale)
    state = shape.trained * (MOMENTS[config.scale.optimizer_bits or 32] + FLOAT)
    checkpoint = state + (0 if shape.adapted or shape.bytes == FLOAT else shape.weight_bytes)
    models = 1 + bool(config.recipe.kl.beta and not shape.adapted) + bool(config.eval.eval_steps)
    return round((config.save.keep_checkpoints + 1) * checkpoint + models * shape.weight_bytes)


def fitted(config: GRPOConfig, model_config: Any, room: Room) -> Fitted:
    """Return the config with its open settings chosen so that it fits. Raise `UsageError` if nothing fits."""
    settled = _with_precision(config, room)
    shape = outline(model_config, settled.scale)
    for choice in _choices(settled, room):
        if (fitting_config := _with_cache(choice, shape, room)) is not None:
            return Fitted(fitting_config, _estimate(shape, fitting_config, room), _notes(settled, fitting_config))
    raise UsageError(refusal(settled, model_config, room, chooses=True))


def counted(config: GRPOConfig, model_config: Any, room: Room) -> Fitted:
    """Return the config as it is, with only the precision chosen, and its estimate."""
    settled = _with_precision(config, room)
    shape = outline(model_config, settled.scale)
    return Fitted(settled, _estimate(shape, settled, room))


def _estimate(shape: Outline, config: GRPOConfig, room: Room) -> MemoryEstimate:
    return estimate(shape, config, on_gpu=room.on_gpu, ranks=room.ranks, device=room.device)


def fits(needed: MemoryEstimate, room: Room) -> bool:
    """Return whether the estimate fits into device and main memory; a memory of unknown size counts as enough."""
    host = sum(part.size for part in needed.host)
    return (not room.device or needed.total <= room.device) and (not room.host or host <= room.host)


def _with_precision(config: GRPOConfig, room: Room) -> GRPOConfig:
    if config.scale.precision != "auto":
        return config
    return changed(config, {"precision": "bfloat16" if room.on_gpu and config.model != "tiny" else "float32"})


def _choices(config: GRPOConfig, room: Room) -> Iterator[GRPOConfig]:
    """Yield the configs to try, from the requested one to the one that needs the least memory."""
    scale, longest = config.scale, config.longest_row
    zero = room.ranks > 1 and scale.sharding == "deepspeed"  # It sums in each pass, and has moments of its own.
    eight = find_spec("bitsandbytes") is not None and config.optimizer.algorithm == "adamw"
    ways: list[dict[str, Any]] = [{}]
    for name, least, possible in (
        ("reduce_each_pass", True, room.ranks > 1 and not zero),
        ("gradient_checkpointing", True, True),
        ("optimizer_bits", 8, eight and not scale.lora_r and not zero),
        ("optimizer_offload", True, room.on_gpu and not zero),  # On a CPU it is in main memory already.
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
    """Return the config with the largest cache that fits, at most one for all slots; None if none fits."""
    full = config.play.slots * config.longest_row
    if config.play.cache_tokens is not None or config.engine.kind == "vllm" or not room.device:
        return config if fits(_estimate(shape, config, room), room) else None
    least = min(full, _FEWEST_ROWS * config.longest_row)
    sizes = [least, *range((least // _GRAIN + 1) * _GRAIN, full, _GRAIN), full]

    def too_large(size: int) -> bool:
        return not fits(_estimate(shape, changed(config, {"cache_tokens": size}), room), room)

    count = bisect_left(sizes, True, key=too_large)
    return changed(config, {"cache_tokens": sizes[count - 1]}) if count else None


def _notes(before: GRPOConfig, after: GRPOConfig) -> tuple[str, ...]:
    """Return one phrase for each setting that was chosen."""
    old, new, tokens, cache = (
        before.scale,
        after.scale,
        after.optimizer.micro_batch_tokens,
        after.play.cache_tokens or 0,
    )
    is_chosen = {
        f"micro-batches of {tokens:,} tokens": tokens != before.optimizer.micro_batch_tokens,
        "gradients summed over the ranks in each pass": new.reduce_each_pass and not old.reduce_each_pass,
        "activation checkpointing": new.gradient_checkpointing and not old.gradient_checkpointing,
        "moments in 8 bits": new.optimizer_bits == 8 != old.optimizer_bits,
        "the optimizer's state in main memory": new.optimizer_offload and not old.optimizer_offload,
        f"a cache of {cache:,} tokens ({cache // after.longest_row} rows of full length)": cache
        and before.play.cache_tokens is None,
    }
    return tuple(phrase for phrase, chosen in is_chosen.items() if chosen)


def refusal(config: GRPOConfig, model_config: Any, room: Room, *, chooses: bool = False) -> str:
    """Return why a run does not fit, and remedies. With `chooses`, describe the smallest run that `fitted` tries."""
    least, shape = config, outline(model_config, config.scale)
    if chooses:
        *_, least = _choices(config, room)
        least = changed(least, {"cache_tokens": min(_FEWEST_ROWS, least.play.slots) * least.longest_row})
    needed = _estimate(shape, least, room)
    parts = {part.name: part.size for part in (*needed.persistent, *needed.learning, *needed.playing, *needed.stepping)}
    largest = sorted(parts.items(), key=lambda part: -part[1])[:4]
    part_sizes = ", ".join(f"{name} {amount(size)}" for name, size in largest)
    has = f"{room.name} has {amount(room.device)} free"
    if room.host and (host := sum(part.size for part in needed.host)) > room.host:
        has += f", and main memory {amount(room.host)} of {amount(host)} that are needed there"
    return (
        f"this run needs {amount(needed.total)}{' at the least' * chooses}, and {has}; the largest parts: "
        f"{part_sizes}. {'; '.join(_remedies(config, model_config, room, chooses=chooses)) or 'Take a smaller model'}"
    )


def _remedies(config: GRPOConfig, model_config: Any, room: Room, *, chooses: bool) -> Iterator[str]:
    """Try settings, and yield a sentence on each with which the run would fit."""
    full_shape = outline(model_config, config.scale)

    def fitting(**changes: Any) -> bool:
        candidate = changed(config, {"cache_tokens": None, **changes})
        shape = outline(model_config, candidate.scale) if "lora_r" in changes else full_shape
        return any(_with_cache(choice, shape, room) is not None for choice in _choices(candidate, room))

    if not chooses and fitting():
        yield "--scale.fit True would choose settings that fit"
        return
    if not config.scale.lora_r and fitting(lora_r=32, optimizer_offload=False):
        yield "--scale.lora-r 32 would fit"
    for divisor in (2, 4, 8, 16, 32):
        longest = config.longest_row // divisor
        if longest >= 2 and fitting(max_episode_tokens=longest):
            yield f"--play.max-episode-tokens {longest} would fit"
            break
    if find_spec("bitsandbytes") is None and not config.scale.lora_r:
        yield "pip install 'palaestra[quantized]' allows moments in 8 bits"
