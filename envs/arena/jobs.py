"""Jobs of an arena: those that its games wait for, and cleanup that nobody waits for.

Left out: continuing a game after its jobs (`arena`), and running jobs (`envs.running`).
"""

import time
from collections.abc import Iterable, Sequence

from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.tables import RunningGame
from palaestra.envs.running.inbox import Inbox, Stall
from palaestra.envs.running.runner import Runner
from palaestra.envs.running.work import Pending, warn_late

_MAX_TOGETHER = 256
"""Maximum number of Pendings that one wait collects, so that some are continued while others still run. A thread that
is woken more often delays the threads that bring the results."""


class ArenaJobs:
    """Jobs of all games of one arena."""

    def __init__(self, name: str, max_workers: int) -> None:
        self.runner = Runner(max_workers)
        self.inbox = Inbox(name)
        self.outstanding = 0
        """Number of Pendings of games that have not come back."""
        self.landed: list[Pending] = []
        """Pendings that have come back, and with which no game has continued yet."""
        self._aside: set[Pending] = set()

    def add(self, table: RunningGame, pending: Pending) -> None:
        """Count a Pending as a job of a game; the caller must start it."""
        pending.owner, pending.slot = table, next(iter(table.slots.values()), 0)
        table.out.append(pending)
        self.outstanding += 1

    def start(self, pendings: Sequence[Pending]) -> None:
        """Run jobs, if there are any."""
        if pendings:
            self.runner.start(pendings, self.inbox)

    def set_aside(self, machine: Playable) -> None:
        """Start the cleanup jobs of a machine."""
        while machine.aside:
            pending = machine.aside.pop()
            self._aside.add(pending)
            self.start((pending,))

    def receive(self, until: float | None, count: int = 1) -> bool:
        """Wait for Pendings, if possible for `count`, and store them; return False if the time `until` came first."""
        pendings = self.inbox.wait(until, min(count, _MAX_TOGETHER))
        for pending in pendings:
            if pending in self._aside:
                self._aside.discard(pending)
                warn_late(self.inbox.env_id, pending.works)
            elif pending in pending.owner.out:
                pending.owner.out.remove(pending)
                self.outstanding -= 1
                self.landed.append(pending)
        return bool(pendings)

    def give_up(self, table: RunningGame) -> None:
        """Drop all jobs of a game."""
        for pending in table.out:
            self.runner.give_up(pending)
        self.outstanding -= len(table.out)
        table.out.clear()

    def stalls(self, tables: Iterable[RunningGame | None], share: float) -> list[Stall]:
        """Return the jobs that have used more than this share of their timeout, or have waited so long to begin."""
        out = [*(pending for table in dict.fromkeys(filter(None, tables)) for pending in table.out), *self._aside]
        stalls = [self.inbox.stall(work) for pending in out for work in pending.works if not work.over]
        return [stall for stall in stalls if stall.seconds > share * stall.timeout]

    def close(self) -> None:
        """Wait for the cleanup jobs, at most until their deadlines, and end all threads."""
        seconds = max((work.patience for pending in self._aside for work in pending.works), default=0.0)
        until = time.monotonic() + seconds
        while self._aside and self.receive(until):
            pass
        for pending in self._aside:
            self.runner.give_up(pending)
        self._aside.clear()
        self.landed.clear()
        self.runner.close()
