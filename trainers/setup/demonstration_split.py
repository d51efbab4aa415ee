"""Training tasks of the cold start: some are demonstrated; the others are held back, and the gate is measured on them.

If tasks are generated without end, the first million tasks are demonstrated. In a fixed set, such as a file, every
fifth task is held back. When all tasks of a part have been used, they are used again, with other seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from palaestra import formats
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.agents.policies.table import in_every_seat
from palaestra.causes import BROKEN, Causes
from palaestra.episode import Episode, Start
from palaestra.errors import TrainingHalted, UsageError
from palaestra.protocols import Arena
from palaestra.registry import Demonstrator
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.samplers.seats import seated, seats_of
from palaestra.trainers.samplers.task_of_group import counts_in

_REPORTS = 50
"""Number of progress reports during demonstrations."""
_MANY = 1_000_000
_EVERY = 5
FEWEST_TASKS = 10
"""Smallest number of tasks: two for the gate, and eight that are demonstrated."""
_ENOUGH = 190
"""Demonstrated tasks from which an agent generalizes. Measured on sums of two numbers with two digits: of the other
tasks an agent solved none after 34, half after 92 and nine of ten after 190."""


@dataclass(frozen=True, slots=True)
class Division:
    """Division of the tasks 0 to `task_count` - 1 into two parts: demonstrated, and held back for the gate."""

    task_count: int

    def __post_init__(self) -> None:
        if self.task_count < FEWEST_TASKS:
            raise UsageError(
                f"a cold start is not possible with {self.task_count} training task"
                f"{'s' if self.task_count != 1 else ''}: some are demonstrated and others measure what the agent has "
                f"learned, which takes at least {FEWEST_TASKS}; add tasks to the train split, or train a model of your "
                "own without demonstrations (--model)"
            )

    def demonstrated(self, number: int) -> int:
        """Return the task of the demonstration with this number."""
        if self._endless:
            return number % _MANY
        place = number % (self.task_count - self.task_count // _EVERY)
        return place + place // (_EVERY - 1)

    def kept_back(self, number: int) -> int:
        """Return the task of the gate's episode with this number."""
        if self._endless:
            return _MANY + number % (self.task_count - _MANY)
        return number % (self.task_count // _EVERY) * _EVERY + _EVERY - 1

    @property
    def warning(self) -> str:
        """Return a warning if there are too few tasks to generalize from; empty if there are enough."""
        count = self.task_count - self.task_count // _EVERY
        if count >= _ENOUGH:
            return ""
        return (
            f"only {count} tasks are demonstrated: with fewer than about {_ENOUGH} the tiny agent may learn them by "
            f"heart and fail the {self.task_count // _EVERY} others, which its gate is measured on"
        )

    @property
    def _endless(self) -> bool:
        return self.task_count >= 2 * _MANY


def demonstrate(
    arena: Arena,
    demonstrator: Demonstrator | Mapping[str, Demonstrator],
    episodes: int,
    tool_rate: float,
    seed: int,
    format: str = formats.DEFAULT,
    on_progress: OnProgress = ignore,
) -> Sequence[Episode]:
    """Let the demonstrator play, in every seat of a game. Return its episodes in task order, without BROKEN ones.
    Raise `TrainingHalted` if there are no others.
    """
    rules = demonstrator if isinstance(demonstrator, Mapping) else {"": demonstrator}
    habits = {env: partial(rule, tool_rate=tool_rate) for env, rule in rules.items()}
    script, table = Agent(ScriptedPolicy(habits, seed, format)), seats_of(arena)
    games = max(1, episodes // max(1, len(table)))
    total = games * max(1, len(table))
    shares, _ = counts_in(arena, games)
    starts = starts_of(arena, shares, lambda tasks, number: tasks.demonstrated(seed * episodes + number))
    played_episodes: list[Episode] = []
    for episode in play(in_every_seat(script, table), arena, seated(starts, table)):
        played_episodes.append(episode)
        if len(played_episodes) % max(1, total // _REPORTS) == 0 or len(played_episodes) == total:
            on_progress(Progress("demonstrations", len(played_episodes), total))
    played_episodes.sort(key=lambda episode: (*episode.start.key[:3], episode.start.seat or ""))
    causes, demonstrations = Causes.of(played_episodes), [e for e in played_episodes if e.reward is not None]
    if not demonstrations:
        raise TrainingHalted(
            f"every demonstration is BROKEN ({causes.of_kind(BROKEN)}); `palaestra check` says what is wrong with the "
            "environment"
        )
    if lines := causes.lines():
        on_progress(Progress("demonstrations", total, total, note="\n".join(lines)))
    return demonstrations


def starts_of(arena: Arena, games: Mapping[str, int], task: Callable[[Division, int], int]) -> Iterator[Start]:
    """Yield `games[env]` starts for each environment; `task(division, n)` returns the task of its n-th start."""
    _, counts = counts_in(arena, 0)
    places = ((env, number) for env, count in games.items() for number in range(count))
    for place, (env, number) in enumerate(places):
        yield Start(task(Division(counts[env]), number), seed=place, group=place, env=env)
