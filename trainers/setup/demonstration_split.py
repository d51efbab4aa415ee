"""Training tasks of the cold start: some are demonstrated; the others are held back, and the gate is measured on them.

If tasks are generated without end, the first million is demonstrated. Of a fixed set, such as a file, every fifth task
is held back. When all tasks of a part have been used, they repeat, each time with another seed.
"""

from dataclasses import dataclass

from palaestra.errors import UsageError

_MANY = 1_000_000
_EVERY = 5
FEWEST_TASKS = 10
"""Smallest number of tasks: two for the gate, and eight that are demonstrated."""
_ENOUGH = 190
"""Demonstrated tasks from which an agent generalizes. Measured on sums of two numbers with two digits: of the other
tasks an agent solved none after 34, half after 92 and nine of ten after 190."""


@dataclass(frozen=True, slots=True)
class Division:
    """Tasks 0 to `task_count` - 1 in two parts without overlap: demonstrated, and held back for the gate."""

    task_count: int

    def __post_init__(self) -> None:
        if self.task_count < FEWEST_TASKS:
            raise UsageError(
                f"the tiny agent cannot be raised on {self.task_count} training task"
                f"{'s' if self.task_count != 1 else ''}: some are shown to it and others tell whether it has learned, "
                f"which takes at least {FEWEST_TASKS}; add tasks to the train split, or train a model of your own with "
                "--model"
            )

    def demonstrated(self, number: int) -> int:
        """Return the task of a demonstration, by its number."""
        if self._endless:
            return number % _MANY
        place = number % (self.task_count - self.task_count // _EVERY)
        return place + place // (_EVERY - 1)

    def kept_back(self, number: int) -> int:
        """Return the task of an episode of the gate, by its number."""
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
