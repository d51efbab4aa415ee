"""Detect the collapse of a policy from its step metrics: the first ten steps are compared with the last ten.

A changed metric is not a collapse: entropy falls in every successful run, and tool calls that are not needed become
rare. So each rule also requires harm: success has fallen to half of its best, or groups no longer differ while tasks
are still unsolved; but a gap between engine and trainer that has grown tenfold is harm by itself. A resumed run starts
to count again. Left out: a run that never learned anything, which looks the same as a hard task.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from palaestra.errors import TrainingHalted

STEPS = 10
"""Number of steps that are compared, at the beginning and at the end."""
_NAMES = {
    "success": "rewards/success/mean",
    "dead": "frac_reward_zero_std",
    "entropy": "entropy",
    "gap": "sampling/sampling_logp_difference/mean",
    "repetition": "audit/repetition",
    "calls": "tools/call_frequency",
}
_CAUSES = {
    "entropy": "exploration has ended: a higher epsilon_high or entropy_coef, from an earlier checkpoint",
    "noise": "the policy has become noise: a lower learning_rate or max_grad_norm, from an earlier checkpoint",
    "gap": "engine and trainer drift apart: look at precision and weight transfer, or set recipe.correction",
    "repetition": "the policy repeats itself: look at what long answers are paid, and at a KL",
    "calls": "the tool was given up: look at what a call costs in tokens and in reward",
    "farming": "calls are made for their own sake: look at the tool bonus",
}


class Collapse:
    """Receives the metrics of each step, and reports each cause of a collapse once."""

    def __init__(self, follows: Literal["warn", "stop", "off"] = "warn") -> None:
        self._follows = follows
        self._steps: list[dict[str, float]] = []
        self._best = 0.0
        self._known: set[str] = set()
        self._told = ""

    def told(self, metrics: Mapping[str, float]) -> str:
        """Record the metrics of a step. Return a message about new signs of a collapse; empty if there are none."""
        if self._follows == "off" or any(name not in metrics for key, name in _NAMES.items() if key != "gap"):
            return ""  # A step without episodes has no metrics.
        # A step without an update has no gap.
        self._steps.append({name: metrics.get(figure, math.nan) for name, figure in _NAMES.items()})
        if len(self._steps) > 3 * STEPS:  # Only the first and the last steps are compared.
            del self._steps[STEPS]
        if len(self._steps) < 2 * STEPS:
            return ""
        then, now = (_medians(part) for part in (self._steps[:STEPS], self._steps[-STEPS:]))
        self._best = max(self._best, then["success"], now["success"])
        new_signs = {name: words for name, words in _signs(then, now, self._best).items() if name not in self._known}
        self._known |= set(new_signs)
        collapse_note = "; ".join(f"collapse: {words}; {_CAUSES[name]}" for name, words in new_signs.items())
        self._told = self._told or collapse_note
        return collapse_note

    def require_none(self) -> None:
        """Raise `TrainingHalted` after a collapse with `stop`. Called between two steps, so that the run is saved."""
        if self._told and self._follows == "stop":
            raise TrainingHalted(f"{self._told} (--collapse warn goes on)")


def _signs(then: Mapping[str, float], now: Mapping[str, float], best: float) -> dict[str, str]:
    """Return a description of each sign of collapse, by cause."""
    fell = best > 0.05 and now["success"] <= best / 2
    stuck = now["dead"] >= 0.9 and now["success"] < 0.8
    signs = {
        "entropy": (now["entropy"] < 0.1 * then["entropy"] and (fell or stuck), "entropy"),
        "noise": (now["entropy"] > 3 * then["entropy"] and fell, "entropy"),
        "gap": (now["gap"] > max(10 * then["gap"], 0.02), "gap"),
        "repetition": (now["repetition"] > max(0.5, then["repetition"] + 0.25) and fell, "repetition"),
        "calls": (now["calls"] < 0.1 * then["calls"] and then["calls"] > 0.1 and fell, "calls"),
        "farming": (now["calls"] > 3 * max(then["calls"], 0.5) and fell, "calls"),
    }
    harm = f"success is {now['success']:.2f}, its best was {best:.2f}"
    harm += f", and {now['dead']:.0%} of the groups are dead" if stuck else ""
    return {
        name: f"{_NAMES[figure]} went from {then[figure]:.3g} to {now[figure]:.3g}; {harm}"
        for name, (is_there, figure) in signs.items()
        if is_there
    }


def _medians(steps: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each metric over the steps that have it; 0 if none has."""
    values_by_name = {name: [step[name] for step in steps if not math.isnan(step[name])] for name in steps[0]}
    return {name: float(np.median(values)) if values else 0.0 for name, values in values_by_name.items()}
