"""Interface that an arena requires of a machine, for environments of any kind.

Our own machine (`core.machine`), external environments (`foreign`) and games played by rule (`by_rule`) have it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from palaestra.envs.core.machine import MachineReply
from palaestra.envs.core.state import Seat
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Event, Start


class Playable(Protocol):
    """Player of one episode at a time, with one seat or several. It never waits, and only one thread may use it."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Names of the seats; None if there is one seat, which needs no name."""

    @property
    def task_count(self) -> int:
        """Number of tasks that a Start may index."""

    @property
    def inline(self) -> bool:
        """True if no tool and no reward waits."""

    @property
    def aside(self) -> list[Pending]:
        """Cleanup jobs that nobody awaits. The driver of the machine must run them."""

    def open(self, starts: Mapping[Seat, Start], *, slots: Mapping[Seat, int]) -> MachineReply:
        """Begin an episode. The starts agree in task and seed; `slots` has the slot number for each seat's events."""

    def act(self, seat: Seat, text: str) -> MachineReply:
        """Take a turn of a seat whose turn it is."""

    def resume(self, pending: Pending) -> MachineReply:
        """Continue the episode after these jobs have finished or timed out."""

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> MachineReply:
        """End the episode from outside. The culprit gets `ending`, other seats TURN_LIMIT; if it is BROKEN, all seats
        get BROKEN."""

    def discard(self) -> None:
        """Drop the running episode without a reward."""

    def close(self) -> None:
        """Release everything."""


@runtime_checkable
class Asking(Protocol):
    """A Playable of one seat that may ask for further turns before it has got the first."""

    def more(self) -> list[Event]:
        """Return the events of the turns that it asks for beside those that are not answered."""
