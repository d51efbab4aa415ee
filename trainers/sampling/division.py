"""Training tasks of the cold start: some are demonstrated, others are kept back, and the gate is measured on those.

Where tasks are drawn there is no end of them, and the first million is demonstrated. Of a fixed set, such as a file,
every fifth is kept back; what there is comes round again, each time with a seed of its own.
"""

from dataclasses import dataclass

from palaestra.errors import UsageError

_MANY = 1_000_000
_EVERY = 5
FEWEST_TASKS = 10
"""Two tasks for the gate, and eight that are demonstrated."""
_ENOUGH = 190
"""Demonstrated tasks that teach more than themselves. Measured on sums of two numbers with two digits: of the other
tasks an agent solved none after 34, half after 92 and nine of ten after 190."""


@dataclass(frozen=True, slots=True)
class Division:
    """So many tasks, numbered from 0, in two parts that share none."""

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
        """The task of the demonstration of that number."""
        if self._endless:
            return number % _MANY
        place = number % (self.task_count - self.task_count // _EVERY)
        return place + place // (_EVERY - 1)

    def kept_back(self, number: int) -> int:
        """The task of the gate's game of that number."""
        if self._endless:
            return _MANY + number % (self.task_count - _MANY)
        return number % (self.task_count // _EVERY) * _EVERY + _EVERY - 1

    @property
    def warning(self) -> str:
        """What whoever raises an agent on so few tasks should know; empty where there are enough."""
        shown = self.task_count - self.task_count // _EVERY
        if shown >= _ENOUGH:
            return ""
        return (
            f"only {shown} tasks are demonstrated: with fewer than about {_ENOUGH} the tiny agent may learn them by "
            f"heart and fail the {self.task_count // _EVERY} others, which its gate is measured on"
        )

    @property
    def _endless(self) -> bool:
        return self.task_count >= 2 * _MANY
