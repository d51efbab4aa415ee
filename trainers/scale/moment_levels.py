"""AdamW's moments in 8 bits, in the checkpoints of several ranks.

bitsandbytes keeps a moment as levels of 8 bits, and one scale for each block of 256 numbers. Blocks begin anew in the
shard of each rank, so other ranks could not read them. A checkpoint of several ranks holds the moments as float32
numbers instead. They become the same levels again where the shards are the same, with scales that are equal but for
their last bit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palaestra.trainers.scale.fsdp import begin_of, is_shard, own_part

_BLOCK = 256
"""Numbers with one scale, in bitsandbytes."""
_LEAST = 4096
"""Smallest number of weights whose moments bitsandbytes keeps in 8 bits."""
_MOMENTS = ("1", "2")


def widened(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of one weight with moments as float32 numbers; unchanged if it is not of bitsandbytes."""
    if "state1" not in state:
        return state
    return {"step": state["step"], **{f"moment{number}": _numbers(state, number) for number in _MOMENTS}}


def narrowed(state: Mapping[str, Any], weight: Tensor) -> Mapping[str, Any]:
    """Return the saved state of one weight as its optimizer holds it: with sharded weights, of this rank's shard."""
    if is_shard(weight) and "qmap1" in state:  # One process wrote it, so its blocks are those of the whole weight.
        begin = begin_of(weight) * weight[0].numel()
        state = {"step": state["step"], **{f"moment{number}": _numbers(state, number, begin) for number in _MOMENTS}}
    if "moment1" not in state:
        return state
    narrow: dict[str, Any] = {"step": state["step"]}
    for number in _MOMENTS:
        moment = state[f"moment{number}"]
        narrow |= _levels(moment, number) if own_part(weight).numel() >= _LEAST else {f"state{number}": moment}
    return narrow


def _numbers(state: Mapping[str, Any], number: str, begin: int = 0) -> Tensor:
    """Return a moment as numbers. Its first level is number `begin` of those that the blocks divide."""
    levels: Tensor = state[f"state{number}"]
    if f"qmap{number}" not in state:
        return levels
    blocks = (torch.arange(levels.numel(), device=levels.device) + begin) // _BLOCK
    flat: Tensor = state[f"qmap{number}"][levels.flatten().long()] * state[f"absmax{number}"][blocks]
    return flat.view(levels.shape)


def _levels(moment: Tensor, number: str) -> dict[str, Tensor]:
    """Return a moment in 8 bits, under the names of bitsandbytes."""
    from bitsandbytes.functional import create_dynamic_map

    values: Tensor = create_dynamic_map(signed=number == "1").to(moment.device)  # type: ignore[no-untyped-call]
    flat = moment.flatten()
    rows = torch.nn.functional.pad(flat, (0, -flat.numel() % _BLOCK)).view(-1, _BLOCK)
    # Levels end at 1, and below 0 a little before -1: the scale is that with which the largest number was a level.
    lowest = values.min().clamp(max=-torch.finfo(values.dtype).tiny)
    scale = torch.maximum(rows.amax(1), (rows.amin(1) / lowest if number == "1" else rows.amax(1)))
    units = rows / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    levels = torch.bucketize(units, (values[1:] + values[:-1]) / 2).to(torch.uint8)
    return {
        f"state{number}": levels.flatten()[: flat.numel()].view(moment.shape),
        f"qmap{number}": values,
        f"absmax{number}": scale,
    }
