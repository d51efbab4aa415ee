"""Base of Gymnasium's and PettingZoo's interfaces to a single episode: its machine, snapshots, forks and pickling.

Left out: observations and infos, which each interface makes itself.
"""

from typing import Any, Self

from palaestra.envs.arena.driving import release
from palaestra.envs.arena.opening import machine_of, require_tasks_file, spec_of
from palaestra.envs.core import branches
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Events
from palaestra.episode import Ending
from palaestra.errors import Broken, UsageError

MODES = ["ansi", "human"]


class SingleEpisode:
    """Base of the interfaces to a single episode: it owns the machine that plays it."""

    _machine: Machine | None = None
    _id = ""
    """Id that the environment was made by; "" without one."""

    def __init__(self, author: ToolEnv, render_mode: str | None) -> None:
        """`author` is an object of an author's class; it is never changed."""
        if render_mode not in (None, *MODES):
            raise UsageError(f"render_mode is {render_mode!r}; expected None or one of {MODES}")
        require_tasks_file(author)
        self.author, self.render_mode = author, render_mode
        """`author` is the author's object; each episode gets a copy of it."""

    @property
    def machine(self) -> Machine:
        """Machine that plays its episodes; created at the first use, so that an idle environment is small."""
        if self._machine is None:
            self._machine = machine_of(spec_of(self.author, self._id))
        return self._machine

    def close(self) -> None:
        """Drop the running episode and release the toolkits."""
        if self._machine is not None:
            release(self._machine)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the running episode; raise a UsageError if one of the toolkits does not support it."""
        return branches.take(self.machine)

    def fork(self, count: int, *, own_noise: bool = True) -> list[Self]:
        """Return `count` new environments with copies of this episode; this environment does not change.

        The seed of each child is computed from the episode's generator, its number of turns and the child's index. So
        branches differ, and a second fork gives the same ones. With `own_noise=False` all children continue exactly as
        this one.
        """
        children = []
        for index, machine in enumerate(branches.fork(self.machine, count, own_noise)):
            child: Self = object.__new__(type(self))
            vars(child).update(vars(self), _machine=machine)
            child._forked(index, own_noise)
            children.append(child)
        return children

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle: the author's object and a snapshot; tools and machine are created again."""
        state = {name: value for name, value in vars(self).items() if name != "_machine"}
        return {**state, "episode": self.snapshot() if self._machine is not None and self._machine.is_open else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        episode: Snapshot | None = state.pop("episode")
        vars(self).update(state)
        if episode is not None:
            branches.put(self.machine, episode)

    def _forked(self, index: int, own_noise: bool) -> None:
        """Replace the attributes that a fork, which starts with those of its parent, must not share with it."""
        raise NotImplementedError


def require_begun(events: Events) -> Events:
    """Return the events of an episode that has begun; raise Broken if it broke at once."""
    for event in events.values():
        if event.ending is Ending.BROKEN:
            raise Broken(event.fault)
    return events


def require_author(face: str, author: Any) -> None:
    """Raise UsageError for a game, and for a value that is not an object of an author's class."""
    if not isinstance(author, ToolEnv):
        raise UsageError(f"{face}({author!r:.80}); expected an object of a ToolEnv class, such as {face}(Boxes())")
    if author.seats:
        raise UsageError(f"{type(author).__name__} is a game of several seats; pettingzoo.make gives its faces")
