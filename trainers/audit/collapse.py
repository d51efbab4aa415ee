"""Whether a policy collapses, told from the figures of its steps: what it was in the first ten, and in the last ten.

A figure that moves is no collapse: entropy falls in every run that learns, and calls become fewer where they are not
needed. So each rule asks for harm too: success that has fallen to half of its best, or groups that no longer differ
while tasks are still unsolved; but a gap between engine and trainer that has grown tenfold is harm by itself. A run
that goes on begins to count anew. Left out: a run that never learned anything, which nothing tells from a hard task.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np

from palaestra.errors import TrainingHalted

STEPS = 10
"""How many are compared at the beginning, and at the end."""
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
    """Hears the figures of each step, and tells of each cause once."""

    def __init__(self, follows: Literal["warn", "stop", "off"] = "warn") -> None:
        self._follows = follows
        self._steps: list[dict[str, float]] = []
        self._best = 0.0
        self._known: set[str] = set()
        self._told = ""

    def told(self, metrics: Mapping[str, float]) -> str:
        """What has collapsed by this step; empty if nothing new has."""
        if self._follows == "off" or any(name not in metrics for name in _NAMES.values()):
            return ""  # A step of which nothing was learned says nothing.
        self._steps.append({name: metrics[figure] for name, figure in _NAMES.items()})
        if len(self._steps) > 3 * STEPS:  # The first ones and the last are all that is compared.
            del self._steps[STEPS]
        if len(self._steps) < 2 * STEPS:
            return ""
        then, now = (_medians(part) for part in (self._steps[:STEPS], self._steps[-STEPS:]))
        self._best = max(self._best, then["success"], now["success"])
        found = {name: words for name, words in _signs(then, now, self._best).items() if name not in self._known}
        self._known |= set(found)
        told = "; ".join(f"collapse: {words}; {_CAUSES[name]}" for name, words in found.items())
        self._told = self._told or told
        return told

    def require_none(self) -> None:
        """End a run that is to stop, between two steps: what was reached is saved."""
        if self._told and self._follows == "stop":
            raise TrainingHalted(f"{self._told} (--collapse warn goes on)")


def _signs(then: Mapping[str, float], now: Mapping[str, float], best: float) -> dict[str, str]:
    """What has collapsed, by cause."""
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
    return {name: float(np.median([step[name] for step in steps])) for name in steps[0]}
