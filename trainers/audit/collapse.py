"""Detect the collapse of a policy from its step metrics: the last eight steps are compared with earlier ones.

A changed metric is not a collapse: entropy falls in every successful run, and tool calls that are not needed become
rare. So each rule also requires harm: success fell to half of its best by more than noise explains, or groups no longer
differ while tasks are unsolved. One rule needs no further harm: the gap between engine and trainer grew tenfold. After
a resume, counting starts from zero. Left out: a run that never learned anything, which looks the same as a hard task.
"""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from palaestra.errors import TrainingHalted

RECENT = 8
"""Number of the last steps, which must all have less success than each of the best ones."""
WINDOW = 10
"""Number of earlier steps that they are compared with: the first ones, and the best ones. A young run has fewer."""
_FEWEST_OUTCOMES = 8
"""Number of independent outcomes that a step is assumed to have, for the noise of its success."""
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
    "lost": "nothing is left to learn from: a lower learning_rate or max_grad_norm, from an earlier checkpoint",
}


class Collapse:
    """Receives the metrics of each step, and reports each cause of a collapse once."""

    def __init__(self, follows: Literal["warn", "stop", "off"] = "warn") -> None:
        self._follows = follows
        self._steps: list[dict[str, float]] = []
        self._best = 0.0, 0.0
        """Mean and least success of the best window so far."""
        self._reported: set[str] = set()
        self._first_note = ""

    def check(self, metrics: Mapping[str, float]) -> str:
        """Record the metrics of a step. Return a message about new signs of a collapse; empty if there are none."""
        if self._follows == "off" or any(name not in metrics for key, name in _NAMES.items() if key != "gap"):
            return ""  # A step without episodes has no metrics.
        # A step without an update has no gap.
        self._steps.append({key: metrics.get(name, math.nan) for key, name in _NAMES.items()})
        earlier, recent = self._steps[:-RECENT], self._steps[-RECENT:]
        if not earlier:
            return ""
        best, least = self._best_success([step["success"] for step in earlier[-WINDOW:]])
        fell = _fell([step["success"] for step in recent], best, least)
        signs = _signs(_medians(earlier[:WINDOW]), _medians(recent), best, fell)
        new_signs = {name: words for name, words in signs.items() if name not in self._reported}
        self._reported |= set(new_signs)
        note = "; ".join(f"collapse: {words}; {_CAUSES[name]}" for name, words in new_signs.items())
        self._first_note = self._first_note or note
        return note

    def require_none(self) -> None:
        """Raise `TrainingHalted` after a collapse if `follows` is "stop". Call this only between two steps."""
        if self._first_note and self._follows == "stop":
            raise TrainingHalted(f"{self._first_note} (--collapse warn goes on)")

    def _best_success(self, successes: list[float]) -> tuple[float, float]:
        """Return mean and lowest success of the best window so far; `successes` are those of the newest window."""
        best = max(self._best, (float(np.mean(successes)), min(successes)))
        if len(successes) == WINDOW:  # The mean of fewer steps may be luck, so it is not remembered.
            self._best = best
        return best


def _fell(recent: list[float], best: float, least: float) -> bool:
    """Return whether the recent mean is far below `best`, and each recent success is below `least`."""
    mean = float(np.mean(recent))
    noise = math.sqrt(max(0.0, best * (1 - best)) / (_FEWEST_OUTCOMES * len(recent)))
    return mean <= best / 2 and best - mean > 4 * noise and max(recent) < least


def _signs(then: Mapping[str, float], now: Mapping[str, float], best: float, fell: bool) -> dict[str, str]:
    """Return a description of each sign of collapse, by cause. `fell` is True if success is far below its best."""
    stuck = now["dead"] >= 0.9 and now["success"] < 0.8
    signs = {
        "entropy": (now["entropy"] < 0.1 * then["entropy"] and (fell or stuck), "entropy"),
        "noise": (now["entropy"] > 3 * then["entropy"] and fell, "entropy"),
        "gap": (now["gap"] > max(10 * then["gap"], 0.02), "gap"),
        "repetition": (now["repetition"] > max(0.5, then["repetition"] + 0.25) and fell, "repetition"),
        "calls": (now["calls"] < 0.1 * then["calls"] and then["calls"] > 0.1 and fell, "calls"),
        "farming": (now["calls"] > 3 * max(then["calls"], 0.5) and fell, "calls"),
    }
    if not any(is_there for is_there, _ in signs.values()):
        signs["lost"] = (stuck and fell and then["dead"] < 0.9, "dead")
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
