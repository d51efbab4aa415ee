"""Detect that a run is solved: for some steps every episode has succeeded, and no group had rewards to compare.

Further steps would play and learn nothing. It is decided from the logged metrics alone, so a resumed run decides alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

SOLVED_STEPS = 5
"""Number of such steps in a row."""


class Solved:
    """Receives the metrics of each step, and reports once that the run is solved."""

    def __init__(self, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        """`logged` are the metrics of the steps that the run has taken already."""
        self._streak = 0
        self._reported = False
        for metrics in logged:
            self.check(metrics)

    @property
    def now(self) -> bool:
        """Return whether the last steps were solved."""
        return self._streak >= SOLVED_STEPS

    def check(self, metrics: Mapping[str, Any]) -> str:
        """Record the metrics of a step. Return a note when the run is solved for the first time; empty otherwise."""
        done = metrics.get("rewards/success/mean") == 1 and metrics.get("frac_reward_zero_std") == 1
        self._streak = self._streak + 1 if done else 0
        if not self.now or self._reported:
            return ""
        self._reported = True
        return (
            f"solved: in the last {SOLVED_STEPS} steps every episode succeeded and no group had rewards to compare, so "
            "nothing is left to learn from these tasks (--eval.stop-when solved ends such a run)"
        )
