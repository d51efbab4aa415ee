"""Begin an arena's episode at its beginning, or at the snapshot of another episode if it is a branch."""

from collections.abc import Mapping

from palaestra.envs.arena.playable import Playable
from palaestra.envs.core import branches
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.state import Seat
from palaestra.episode import Attempt, Ending, Event, Start
from palaestra.errors import Broken, UsageError


def snapshot_of(machine: Playable | None) -> branches.Snapshot:
    """Return a snapshot of a machine's episode. Raise UsageError if the environment has none."""
    if not isinstance(machine, Machine):
        raise UsageError("an environment of another project has no snapshots, so no branches of its episodes are made")
    return branches.take(machine)


def open_start(machine: Playable, starts: Mapping[Seat, Start], slots: Mapping[Seat, int]) -> MachineReply:
    """Begin the episode of these starts. A branch begins with the snapshot of its point."""
    start = next(iter(starts.values()))
    point = None if start.branch is None else start.branch.point
    if point is None:
        return machine.open(starts, slots=slots)
    assert isinstance(machine, Machine), "only such a machine gives a snapshot"
    slot, snapshot = slots[None], point.snapshot
    try:
        branches.put(machine, snapshot)
    except Broken as error:
        dialogue = snapshot.seats[None]
        attempt = Attempt(snapshot.problem, tuple(dialogue.messages), None, tuple(dialogue.calls), dialogue.turns)
        return {None: Event(slot, start, ending=Ending.BROKEN, attempt=attempt, fault=str(error))}
    assert machine.state is not None
    dialogue = machine.state.seats[None]
    dialogue.start, dialogue.slot = start, slot
    return machine.pending_events
