"""Random numbers for sampling that depend only on the run, the episode, the turn and the position of a token.

So a token does not change if other episodes begin, end or wait, and the same seed gives the same curve. The numbers
come from a hash in int64 arithmetic, which gives the same result on every device. One number per token is enough:
`sampling` finds the word with it.
"""

import hashlib

import torch
from torch import Tensor

_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""Multipliers of splitmix64, as signed numbers."""


def row_key(seed: int, task: int, start_seed: int, turn: int) -> int:
    """Return a 32-bit key for the random numbers of one turn, from the run's seed, the episode and the turn."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{task}/{start_seed}/{turn}".encode(), digest_size=4).digest(), "big")


def uniform(keys_W: Tensor, positions_W: Tensor) -> Tensor:
    """Return for each row a random number of 48 bits for its position, in the open interval (0, 1); float64 [W]."""
    x_W = (keys_W << 24) ^ positions_W
    x_W = (x_W ^ _right(x_W, 30)) * _FIRST
    x_W = (x_W ^ _right(x_W, 27)) * _SECOND
    x_W = _right(x_W ^ _right(x_W, 31), 16)
    return (x_W.to(torch.float64) + 0.5) * 2.0**-48


def _right(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift would repeat the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
