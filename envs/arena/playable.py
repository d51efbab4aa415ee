"""What an arena plays: a machine, whoever wrote the environment behind it.

Ours is `core.machine`; others' environments (`foreign`) and seats played by rule (`by_rule`) behave alike.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from palaestra.envs.core.machine import Reply
from palaestra.envs.core.state import Seat
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Start


class Playable(Protocol):
    """One episode at a time, of one seat or several. It never waits, and one thread alone touches it."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Who plays; None where there is one seat, which needs no name."""

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""

    @property
    def inline(self) -> bool:
        """True when nothing waits."""

    @property
    def aside(self) -> list[Pending]:
        """Closings that nobody waits for; whoever drives the machine runs them."""

    def open(self, starts: Mapping[Seat, Start], *, slots: Mapping[Seat, int]) -> Reply:
        """Begin an episode. The starts agree in task and seed; events name the slots."""

    def act(self, seat: Seat, text: str) -> Reply:
        """Take a turn of a seat that was asked."""

    def resume(self, pending: Pending) -> Reply:
        """Go on from works that are all over or late."""

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Reply:
        """End the episode from outside. The culprit's ending is this one; the others' are not their doing."""

    def discard(self) -> None:
        """Drop what runs without a reward."""

    def close(self) -> None:
        """Release everything."""
