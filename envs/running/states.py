"""Where each slot of a vector environment stands, and so what may be done with it.

Left out: changing it, which is `slots`' affair, and the slots of games, which wait for each other (`games.game_arena`).
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from palaestra.errors import UsageError


class State(Enum):
    """Where a slot stands."""

    FREE = "free: no episode runs there; begin one (with step: pass None for it, or reset it by options['reset_mask'])"
    WAITING = "waiting for the agent"
    BUSY = "busy: its event has not been received yet; call recv"
    CLOSED = "closed with its environment; make a new one"


def require_slot(states: Sequence[State], slot: int) -> None:
    """Refuse a slot that does not exist."""
    if not 0 <= slot < len(states):
        raise UsageError(f"slot {slot} does not exist; expected 0 to {len(states) - 1}")


def require_waiting(states: Sequence[State], slots: Iterable[int], verb: str) -> None:
    """Refuse slots that do not wait for the agent's turn."""
    count, waiting = len(states), State.WAITING
    for slot in slots:
        if not 0 <= slot < count:
            require_slot(states, slot)
        if states[slot] is not waiting:
            raise UsageError(f"{verb}: slot {slot} is {states[slot].value}")
