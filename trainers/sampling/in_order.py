"""Groups in the order of their numbers, whatever ends first: what all samplers of one environment have in common.

A group is decided when all of its members have ended: it is one of the batch, or it is dropped and another group is
begun in its place. A batch is the first `num_prompts` groups that are not dropped. Left out: which task a group is of
(`draws`), and which groups are dropped (`dynamic`).
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from palaestra.episode import Start
from palaestra.errors import UsageError
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.sampling.sampler import Draw
from palaestra.trainers.sampling.seats import seated

Compared = Literal["success", "reward"]
"""What a sampler compares within a group: the environment's success, or the training reward with all of its terms."""
Keeps = Callable[[Sequence[Scored]], bool]


@dataclass(frozen=True, slots=True)
class Groups:
    """What is played in a step, and by whom; in a game each seat has groups of its own."""

    num_prompts: int
    num_generations: int
    seats: tuple[str, ...] = ()
    learning: frozenset[str] = frozenset()
    """Seats that are learned from."""
    greedy: bool = False
    """Whether one more episode of each task is played with the likeliest tokens, which is not learned from."""
    tasks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The tasks that are played, by environment; all of one that is not named. Draws are places in these."""

    @property
    def digest(self) -> str:
        """Of the tasks; "" where all are played."""
        text = json.dumps({env: list(tasks) for env, tasks in self.tasks.items()}, sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest() if self.tasks else ""

    @property
    def episodes(self) -> int:
        """Of each task."""
        return self.num_generations + self.greedy

    @property
    def members(self) -> int:
        """Episodes that a group's number stands for."""
        return self.episodes * max(1, len(self.seats))


class InOrder:
    """Plays groups by their numbers, and makes batches of those that are kept."""

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
        draw: Draw,
        groups: Groups,
        keeps: Keeps = lambda _: True,
        most: int = 1,
        give_up: int | None = None,
        compared: Compared = "success",
    ) -> None:
        """`most` times `num_prompts` groups are played for a batch; after `give_up` members that ended alike, the rest
        of a group is not played.
        """
        self.draw, self.groups, self.keeps = draw, groups, keeps
        self.most, self.give_up, self.compared = most * groups.num_prompts, give_up, compared
        self.load({"first": 0})

    def next(self, ahead: int = 0) -> Start | None:
        """The next member of the group that is begun, or the first of another."""
        if not self._queue and self._room(ahead):
            self._queue.extend(self._starts(self._begun))
            self._begun += 1
        return self._queue.popleft() if self._queue else None

    def heard(self, scored: Scored) -> None:
        """Keep it for its group, and decide whether that is one of the batch."""
        if not self.wanted(scored.episode.start):
            return
        number = self._number(scored.episode.start)
        members = self._heard.setdefault(number, [])
        members.append((self._place(scored.episode.start), scored))
        self._arrived += 1
        known = [scored for _, scored in members]
        if len(members) == self.groups.members:
            self._kept[number] = self.keeps(known)
        elif self.give_up is not None and len(members) >= self.give_up and not spread(known, self.compared):
            self._kept[number] = False
            self._given_up.add(number)
            self._queue = deque(start for start in self._queue if self._number(start) != number)

    def wanted(self, start: Start) -> bool:
        """All but those of groups that were given up."""
        number = self._number(start)
        return number >= self._first and number not in self._given_up

    def batch(self) -> Batch | None:
        """The groups that are kept, once enough of them have ended, or as many as `most` had to give."""
        kept: list[int] = []
        number = self._first
        while len(kept) < self.groups.num_prompts and number - self._first < self.most:
            if number not in self._kept:
                return None
            kept += [number] if self._kept[number] else []
            number += 1
        arrived = sorted(
            (pair for at in range(self._first, number) for pair in self._heard[at]), key=lambda pair: pair[0]
        )
        played = tuple(scored for _, scored in arrived)
        figures = self._figures(number, len(kept))
        for at in range(self._first, number):
            del self._heard[at], self._kept[at]
            self._given_up.discard(at)
        self._first, made = number, self._made
        self._made += 1
        taught = [i for i, scored in enumerate(played) if self._teaches(scored, kept)]
        groups = sorted({played[place].episode.start.group for place in taught})
        samples = tuple(Sample(place, groups.index(played[place].episode.start.group)) for place in taught)
        return Batch(made, played, samples, self.state(), figures)

    def state(self) -> Mapping[str, Any]:
        """Every draw follows from a group's number, so two numbers are all."""
        tasks = self.groups.digest
        return {"first": self._first, "made": self._made, **({"tasks": tasks} if tasks else {})}

    def load(self, state: Mapping[str, Any]) -> None:
        """Stand before the group of that number."""
        if state.get("tasks", self.groups.digest) != self.groups.digest:
            raise UsageError("the file of curated tasks is not what it was when this run began; put it back")
        self._first = self._begun = int(state["first"])
        self._made = int(state.get("made", self._first // self.groups.num_prompts))
        self._arrived = 0
        self._queue, self._heard, self._kept, self._given_up = deque(), {}, {}, set()

    def _room(self, ahead: int) -> bool:
        """Whether to begin a group: while what may still be kept is less than the batches that are wanted."""
        dropped = sum(not kept for kept in self._kept.values())
        begun, batches = self._begun - self._first, ahead + 1
        return begun - dropped < batches * self.groups.num_prompts and begun < batches * self.most

    def _starts(self, group: int) -> Iterator[Start]:
        """The members of a group, and of a game each seat's; a seat's episodes are compared with one another."""
        env, drawn = self.draw(group)
        task = self.groups.tasks[env][drawn] if env in self.groups.tasks else drawn
        count, first = self.groups.num_generations, group * self.groups.episodes
        places = range(self.groups.episodes)
        starts = (Start(task, first + place, group, env=env, greedy=place >= count) for place in places)
        return seated(starts, self.groups.seats)

    def _number(self, start: Start) -> int:
        return start.group // max(1, len(self.groups.seats))

    def _place(self, start: Start) -> int:
        """Where an episode that is heard now stands in its batch."""
        return self._arrived

    def _teaches(self, scored: Scored, kept: Sequence[int]) -> bool:
        """An episode that another seat cut short has a fault, and is no lesson; nor is a greedy one."""
        episode, seats = scored.episode, self.groups.seats
        number, greedy = self._number(episode.start), episode.start.greedy
        if scored.terms is None or episode.fault or greedy or number not in kept:
            return False
        return not seats or episode.start.seat in self.groups.learning

    def _figures(self, end: int, kept: int) -> dict[str, float]:
        """What was played for the batch; nothing to say where no group can be dropped."""
        if self.most == self.groups.num_prompts:
            return {}
        given_up = sum(number in self._given_up for number in range(self._first, end))
        return {"sampler/groups": end - self._first, "sampler/kept": kept, "sampler/given_up": given_up}


def spread(members: Sequence[Scored], compared: Compared) -> bool:
    """Whether members of a group differ in what is compared; of a game, those of any seat."""
    return any(len(set(values)) > 1 for values in compared_values(members, compared).values())


def compared_values(members: Sequence[Scored], compared: Compared) -> dict[str | None, list[float]]:
    """What is compared, by seat, of each member that has it."""
    found: dict[str | None, list[float]] = {}
    for scored in members:
        if scored.terms is not None and not scored.episode.fault:
            value = scored.episode.parts["success"] if compared == "success" else scored.reward
            found.setdefault(scored.episode.start.seat, []).append(value)
    return found
