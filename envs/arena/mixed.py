"""MixedArena: an arena whose slots play several environments: `Start.env` names one, `Start.task` is a task of it.

Every slot plays any of them, one episode after another, so a slow environment delays no other. Left out: games of
several seats, of which each takes several slots, and how often each is played (the trainer's samplers).
"""

from collections.abc import Callable, Mapping

from palaestra.envs.arena.arena import LocalArena
from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.tables import RunningGame, SlotState
from palaestra.episode import Start
from palaestra.errors import UsageError
from palaestra.mixture import Mixture


class MixedArena(LocalArena):
    """Arena with `slots` slots for the environments of a mixture."""

    def __init__(
        self,
        mixture: Mixture,
        makes: Mapping[str, Callable[[], Playable]],
        slots: int,
        *,
        name: str,
        ordered: bool | None = None,
        max_workers: int | None = None,
    ) -> None:
        """`makes` creates a machine of each environment; `task_count` is the sum of `task_counts`."""
        self.mixture, self._makes = mixture, makes
        self._free: dict[str, list[Playable]] = {}
        try:
            for env, make in makes.items():
                self._free[env] = [make()]
                if (seats := tuple(self._free[env][0].seats)) != (None,):
                    raise UsageError(
                        f"{env} is a game of the seats {', '.join(map(str, seats))}, and an environment of a mixture "
                        f"has one: choose it, as in --env-options {env}.seat={seats[0]}, or train the game alone"
                    )
            firsts = {env: first for env, (first,) in self._free.items()}
            ordered = all(first.inline for first in firsts.values()) if ordered is None else ordered
            super().__init__(
                lambda: next(iter(firsts.values())), slots, name=name, ordered=ordered, max_workers=max_workers
            )
        except BaseException:  # If one environment fails, the others must release what they hold.
            for free in self._free.values():
                free[0].close()
            raise
        self._idle.clear()
        self.task_counts = {env: first.task_count for env, first in firsts.items()}
        self.task_count = sum(self.task_counts.values())
        specs = (getattr(first, "spec", None) for first in firsts.values())
        self._parts = tuple(tuple(spec.parts) for spec in specs if spec is not None)

    @property
    def reward_parts(self) -> tuple[tuple[str, ...], ...]:
        """Names of the reward's parts, as each environment's author declares them."""
        return self._parts

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode of the environment that the start names. If the slot is in use, its episode is discarded."""
        if start.env not in self._makes:
            raise UsageError(f"{self.name}: Start.env is {start.env!r}; expected one of {', '.join(self._makes)}")
        if 0 <= slot < self.slots and self._standing[slot] is SlotState.FREE:
            table = self._tables[slot]
            if table is not None and table.starts[None].env != start.env:  # Its machine plays another environment.
                self._retire(table)
                self._tables[slot] = None
        super().begin(slot, start)

    def close(self) -> None:
        """Discard running episodes and release everything."""
        for table in filter(None, [*self._tables]):
            self._drop(table)
        self._idle += [machine for free in self._free.values() for machine in free]
        self._free.clear()
        super().close()

    def _free_machine(self, start: Start) -> Playable:
        free = self._free[start.env]
        return free.pop() if free else self._makes[start.env]()

    def _retire(self, table: RunningGame, in_use: bool = False) -> None:
        if table.machine is not None and not in_use:
            self._free[table.starts[None].env].append(table.machine)
        table.machine = None
