"""MixedArena: an arena whose slots play several environments: `Start.env` names one, `Start.task` is a task of it.

Every slot plays any of them, one episode after another, so a slow environment delays no other. Left out: games of
several seats, which need several slots each, and the share of each environment (`trainers.samplers`).
"""

from collections.abc import Callable, Mapping

from palaestra.envs.arena.arena import LocalArena
from palaestra.envs.arena.playable import Playable
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
        """`makes` has, for each environment, a function that creates a machine. `task_count` is the sum of all
        `task_counts`."""
        super().__init__(makes, slots, name=name, ordered=ordered, max_workers=max_workers)
        self.mixture = mixture
        firsts = {env: first for env, (first,) in self._idle.items()}
        for env, first in firsts.items():
            if (seats := tuple(first.seats)) != (None,):
                self.close()
                raise UsageError(
                    f"{env} is a game of the seats {', '.join(map(str, seats))}, and an environment of a mixture "
                    f"has one: choose it, as in --env-options {env}.seat={seats[0]}, or train the game alone"
                )
        self.task_counts = {env: first.task_count for env, first in firsts.items()}
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
        super().begin(slot, start)
