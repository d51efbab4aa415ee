"""The common base of all samplers: a batch takes groups in the order of their numbers, not in the order of their ends.

When all members of a group have ended, the group is kept for the batch, or it is dropped and another group is started.
A batch is the first `num_prompts` groups that are not dropped. Left out: the choice of a group's task
(`task_of_group`), and the choice of the groups to drop (`dapo`).
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from palaestra.episode import Start
from palaestra.errors import ConfigError, UsageError
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.samplers.sampler import TaskDraw
from palaestra.trainers.samplers.seats import seated

Compared = Literal["success", "reward"]
"""Value that a sampler compares within a group: the environment's success, or the training reward with all terms."""
Keeps = Callable[[Sequence[Scored]], bool]


@dataclass(frozen=True, slots=True)
class Groups:
    """Settings of the groups of a step: their tasks, size and seats. In a game each seat has its own groups."""

    num_prompts: int
    num_generations: int
    seats: tuple[str, ...] = ()
    learning: frozenset[str] = frozenset()
    """Seats whose episodes are trained on."""
    greedy: bool = False
    """True to play one more episode of each task with greedy decoding. It is not trained on."""
    tasks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Tasks to play, by environment; all tasks of an environment that is absent. Draws are indices into these."""
    reward_range: tuple[float, float] | None = (-1.0, 1.0)
    """Smallest and largest training reward, as the terms of the recipe declare them; None if they do not."""

    @property
    def digest(self) -> str:
        """Return a digest of the task lists, or "" if all tasks are played."""
        text = json.dumps({env: list(tasks) for env, tasks in self.tasks.items()}, sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest() if self.tasks else ""

    @property
    def episodes(self) -> int:
        """Return the number of episodes per task and seat, including the greedy one if there is one."""
        return self.num_generations + self.greedy

    @property
    def members(self) -> int:
        """Return the number of episodes with the same group number, over all seats."""
        return self.episodes * max(1, len(self.seats))

    def require_one_seat(self, env: str, sampler: str, unit: str) -> None:
        """Raise `ConfigError` for a game and for greedy attempts. The error names the `sampler`, and the `unit` that it
        composes of episodes.
        """
        if self.seats:
            raise ConfigError(
                f"{env} is a game of the seats {', '.join(self.seats)}, and {unit} consist of one agent's episodes "
                "alone; use another sampler (--recipe.sampler uniform)"
            )
        if self.greedy:
            raise ConfigError(
                f"the sampler {sampler} plays no greedy attempt, which the advantage greedy-baseline needs"
            )


class InOrder:
    """Sampler that starts groups in the order of their numbers, and builds batches of the kept groups."""

    _first: int
    _begun: int
    _made: int
    _arrived: int
    _queue: deque[Start]
    _heard: dict[int, list[tuple[int, Scored]]]
    _kept: dict[int, bool]
    _given_up: set[int]

    def __init__(
        self,
        draw: TaskDraw,
        groups: Groups,
        keeps: Keeps = lambda _: True,
        rounds: int = 1,
        give_up: int | None = None,
        compared: Compared = "success",
    ) -> None:
        """Play at most `rounds` times `num_prompts` groups for a batch. If the first `give_up` members of a group have
        equal outcomes, drop the group without playing the others.
        """
        self.draw, self.groups, self.keeps = draw, groups, keeps
        self.max_groups, self.give_up, self.compared = rounds * groups.num_prompts, give_up, compared
        self.load({"first": 0})

    def next(self, ahead: int = 0) -> Start | None:
        """Return the start of the next member of the group, or of the first member of the next group.

        Return None if no group may start now.
        """
        if not self._queue and self._room(ahead):
            self._queue.extend(self._starts(self._begun))
            self._begun += 1
        return self._queue.popleft() if self._queue else None

    def observe(self, scored: Scored) -> None:
        """Add a scored episode to its group. When the group is complete, decide whether it is kept."""
        if not self.still_needed(scored.episode.start):
            return
        number = self._number(scored.episode.start)
        members = self._heard.setdefault(number, [])
        members.append((self._place(scored.episode.start), scored))
        self._arrived += 1
        arrived = [scored for _, scored in members]
        if len(members) == self.groups.members:
            self._kept[number] = self.keeps(arrived)
        elif self.give_up is not None and len(members) >= self.give_up and not spread(arrived, self.compared):
            self._kept[number] = False
            self._given_up.add(number)
            self._queue = deque(start for start in self._queue if self._number(start) != number)

    def still_needed(self, start: Start) -> bool:
        """Return False if the group of this start was given up, or belongs to an earlier batch; otherwise True."""
        number = self._number(start)
        return number >= self._first and number not in self._given_up

    def batch(self) -> Batch | None:
        """Return a batch when `num_prompts` groups are kept or `max_groups` are decided; return None before that."""
        kept_groups: list[int] = []
        number = self._first
        while len(kept_groups) < self.groups.num_prompts and number - self._first < self.max_groups:
            if number not in self._kept:
                return None
            kept_groups += [number] if self._kept[number] else []
            number += 1
        arrived = sorted(
            (pair for at in range(self._first, number) for pair in self._heard[at]), key=lambda pair: pair[0]
        )
        episodes = tuple(scored for _, scored in arrived)
        figures = self._figures(number, len(kept_groups))
        for at in range(self._first, number):
            del self._heard[at], self._kept[at]
            self._given_up.discard(at)
        self._first, batch_number = number, self._made
        self._made += 1
        trained = [i for i, scored in enumerate(episodes) if self._is_trained(scored, kept_groups)]
        groups = sorted({episodes[place].episode.start.group for place in trained})
        samples = tuple(Sample(place, groups.index(episodes[place].episode.start.group)) for place in trained)
        return Batch(batch_number, episodes, samples, self.state(), figures)

    def state(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint: the next group's number, the number of batches, and the task digest."""
        tasks = self.groups.digest
        return {"first": self._first, "made": self._made, **({"tasks": tasks} if tasks else {})}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        if state.get("tasks", self.groups.digest) != self.groups.digest:
            raise UsageError("the file of curated tasks is not what it was when this run began; put it back")
        self._first = self._begun = int(state["first"])
        self._made = int(state.get("made", self._first // self.groups.num_prompts))
        self._arrived = 0
        self._queue, self._heard, self._kept, self._given_up = deque(), {}, {}, set()

    def _room(self, ahead: int) -> bool:
        """Return whether another group may start: only if the groups so far, without dropped ones, are too few for the
        current batch and `ahead` batches after it.
        """
        dropped = sum(not is_kept for is_kept in self._kept.values())
        started, batches = self._begun - self._first, ahead + 1
        return started - dropped < batches * self.groups.num_prompts and started < batches * self.max_groups

    def _starts(self, group: int) -> Iterator[Start]:
        """Yield one start for each member of a group; in a game, one start per seat for each member."""
        env, index = self.draw(group)
        task = self.groups.tasks[env][index] if env in self.groups.tasks else index
        count, first = self.groups.num_generations, group * self.groups.episodes
        places = range(self.groups.episodes)
        starts = (Start(task, first + place, group, env=env, greedy=place >= count) for place in places)
        return seated(starts, self.groups.seats)

    def _number(self, start: Start) -> int:
        return start.group // max(1, len(self.groups.seats))

    def _place(self, start: Start) -> int:
        """Return the sort key of an episode within its batch: by default the number of episodes scored before it."""
        return self._arrived

    def _is_trained(self, scored: Scored, kept_groups: Sequence[int]) -> bool:
        """Return whether to train on an episode. It must have a reward and no fault (a fault can be that another seat
        ended the game), must not be greedy, and must belong to a kept group and a learning seat.
        """
        episode, seats = scored.episode, self.groups.seats
        number, greedy = self._number(episode.start), episode.start.greedy
        if scored.terms is None or episode.fault or greedy or number not in kept_groups:
            return False
        return not seats or episode.start.seat in self.groups.learning

    def _figures(self, end: int, kept_count: int) -> dict[str, float]:
        """Return the metrics of a batch: groups played, kept and given up; empty if no group can be dropped."""
        if self.max_groups == self.groups.num_prompts:
            return {}
        given_up = sum(number in self._given_up for number in range(self._first, end))
        return {"sampler/groups": end - self._first, "sampler/kept": kept_count, "sampler/given_up": given_up}


def spread(members: Sequence[Scored], compared: Compared) -> bool:
    """Return whether members of a group differ in the compared value. In a game, one seat that differs is enough."""
    return any(len(set(values)) > 1 for values in compared_values(members, compared).values())


def compared_values(members: Sequence[Scored], compared: Compared) -> dict[str | None, list[float]]:
    """Return the values to compare, by seat. A member that has a fault or no reward has no value."""
    values_by_seat: dict[str | None, list[float]] = {}
    for scored in members:
        if scored.terms is not None and not scored.episode.fault:
            value = scored.episode.parts["success"] if compared == "success" else scored.reward
            values_by_seat.setdefault(scored.episode.start.seat, []).append(value)
    return values_by_seat
