"""The claims of the second and third round, and their tables: the analysis that was fixed before any of their runs.

An arm is judged at its own better rate: for each seed, the one with the higher mean AUC of the arm in all other seeds.
A claim's p-value is that of a two-sided sign-flip test of the differences by seed, corrected by Holm's method over
the claims of its round; its interval is Student's t. A claim is open until all its seeds are there. Left out: settings
(`second_round`, `third_round`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from math import inf
from typing import Any

import numpy as np
from claims import Answer, Claim, Line, area, first_round, holm, tokens_saved
from parts import COMPARISONS
from results import Results

LEFT_ZERO = 0.1
"""Smallest held-out success at which a run counts as having left zero."""
EXACT = 16
"""Largest number of seeds for which all flips of signs are tried. For more seeds, 2**16 flips are drawn."""


def leaves_zero(line: Line) -> float:
    """Return 1 if the success of any point after the start is at least `LEFT_ZERO`, otherwise 0."""
    return float(any(point["success"] >= LEFT_ZERO for point in line["curve"][1:]))


def sooner_at_half(line: Line) -> float:
    """Return how much of the budget is left at the first point with half of the tasks solved; 0 if there is none."""
    points = line["curve"][1:]
    reached = next((at for at, point in enumerate(points, start=1) if point["success"] >= 0.5), len(points) + 1)
    return 1 - (reached - 1) / len(points)


def last_pass(line: Line) -> float:
    """Return pass@8 at the end."""
    return float(line["curve"][-1]["pass@8"])


def last_success(line: Line) -> float:
    """Return the success at the end."""
    return float(line["curve"][-1]["success"])


def first_calls(line: Line) -> float:
    """Return the number of calls per episode at the start."""
    return float(line["curve"][0]["calls"])


def last_calls(line: Line) -> float:
    """Return the number of calls per episode at the end."""
    return float(line["curve"][-1]["calls"])


def kept_pass(line: Line) -> float:
    """Return pass@8 at the end, less its highest value on the way: 0 if it ends at its highest value."""
    return float(line["curve"][-1]["pass@8"] - max(point["pass@8"] for point in line["curve"]))


@dataclass(frozen=True)
class TunedClaim(Claim):
    """A claim on two arms, each at its own better rate."""

    def differences(self, results: Results) -> list[float]:
        """Return the difference of each seed that has all runs of both arms."""
        runs, others = (tuned(results, self.comparison, arm) for arm in (self.arm, self.against))
        base = self.base or self.measure
        return [self.measure(runs[seed]) - base(others[seed]) for seed in sorted(runs) if seed in others]


SECOND_CLAIMS = (
    TunedClaim(
        "VSPO's choice of groups by value is better than a random one", "graded", "value", "random",
        replaces=("VSPO's choice of groups is better than a random one",),
    ),
    TunedClaim("Damping of VSPO's copies helps", "graded", "value and damping", "value"),
    TunedClaim(
        "VSPO learns more than GRPO where tasks differ in value", "graded", "value and damping", "none",
        replaces=(
            "VSPO learns more than GRPO", "VSPO at twice the rate learns more than GRPO at twice the rate",
        ),
    ),
    TunedClaim(
        "More starved starts leave zero with PRS than with a binary reward", "starved", "prs", "binary",
        leaves_zero, of="share of seeds that leave zero",
    ),
    TunedClaim(
        "PRS solves half of the tasks sooner", "starved", "prs", "binary",
        sooner_at_half, of="share of the budget left at .5",
    ),
    TunedClaim(
        "PRS learns more from starved starts than a binary reward", "starved", "prs", "binary",
        replaces=("PRS beats a binary reward where hardly a call is served",),
    ),
    TunedClaim("Weights that move teach more than fixed ones", "starved", "moving", "prs"),
    TunedClaim(
        "Training on two worlds carries over to a third more than on one", "worlds", "diverse", "single",
        replaces=("Training on two kinds of questions transfers better to a third",),
    ),
    TunedClaim("Curated tasks teach more, the cost of curation included", "curation", "curated", "unfiltered"),
    TunedClaim(
        "SCR with bounds scaled to the length learns more than TCR", "scaled", "SCR, scaled", "TCR",
        replaces=("SCR with bounds 33 times as wide learns more than TCR",),
    ),
    TunedClaim(
        "Reagent-R learns more than no judge where its score varies", "process", "R", "none",
        replaces=("Reagent-R learns more than no judge",),
    ),
    TunedClaim("TCR ends with a higher pass@8 than T", "pass-at-8", "TCR", "T", last_pass, of="pass@8 at the end"),
    TunedClaim("TCR gives up less pass@8 than T", "pass-at-8", "TCR", "T", kept_pass, of="pass@8, end less highest"),
    TunedClaim("An upper bound of .28 is better than .20", "bounds", "0.28", "0.20"),
    TunedClaim("An upper bound of .315 is better than .28", "bounds", "0.315", "0.28"),
    TunedClaim("An upper bound of .35 is worse than .315", "bounds", "0.315", "0.35"),
    TunedClaim(
        "Calls vanish from a start that thinks without them", "thinking", "thinking", "thinking",
        first_calls, last_calls, "calls an episode, first less last",
    ),
    TunedClaim("Real episodes repair a start that thinks without calls", "thinking", "thinking, real", "thinking"),
    TunedClaim(
        "So repaired, it ends better than an instruct start", "thinking", "thinking, real", "instruct, real",
        last_success, of="success at the end",
    ),
)  # fmt: skip
_ASKED_AGAIN = ("graded", "starved")
THIRD_CLAIMS = (
    *(
        replace(claim, comparison=f"{claim.comparison}-again")
        for claim in SECOND_CLAIMS
        if claim.comparison in _ASKED_AGAIN and claim.arm != "moving"
    ),
    TunedClaim("An upper bound of .35 is better than .20", "bounds-again", "0.35", "0.20"),
    Claim(
        "Trees (Tree-GRPO) need fewer tokens to .8, two hops", "tree-again", "tree-grpo", "plain",
        tokens_saved, of="thousand tokens, less", worth=1.0,
    ),
)  # fmt: skip


def tuned(results: Results, comparison: str, arm: str) -> dict[int, Mapping[str, Any]]:
    """Return the runs of an arm by seed, each at the rate with the higher mean AUC in all other seeds; the lower rate
    where they are equal.
    """
    rates = [results.of(comparison, name) for name in COMPARISONS[comparison].arms if name.startswith(f"{arm}, lr ")]
    seeds = sorted(set.intersection(*(set(rate) for rate in rates)))
    areas = np.array([[area(rate[seed]) for seed in seeds] for rate in rates])
    others = areas.sum(axis=1, keepdims=True) - areas
    return {seed: rates[int(np.argmax(others[:, at]))][seed] for at, seed in enumerate(seeds)}


def sign_flip_p(values: Sequence[float]) -> float:
    """Return the share of all flips of signs whose sum is at least as far from 0 as the sum of the differences."""
    count = len(values)
    if count <= EXACT:
        signs = np.array(list(product((1, -1), repeat=count)))
    else:  # The given signs are among them, so that no p-value is 0.
        signs = np.random.default_rng(0).choice((1, -1), (2**EXACT, count))
        signs[0] = 1
    sums = np.abs(signs @ np.asarray(values))
    return float(np.mean(sums >= abs(sum(values)) - 1e-9))


def later_round(results: Results, claims: Sequence[Claim]) -> list[Answer]:
    """Return the answers to the claims of a round."""
    differences = {claim: claim.differences(results) for claim in claims}
    whole = {claim: len(values) == COMPARISONS[claim.comparison].seeds for claim, values in differences.items()}
    # A claim whose seeds are not all there counts in the correction with a p-value of 1, and stays open.
    p_values = [sign_flip_p(values) if whole[claim] else 1.0 for claim, values in differences.items()]
    corrected = dict(zip(differences, holm(p_values), strict=True))
    return [
        Answer(claim, values, (corrected[claim] if whole[claim] else inf) if len(values) > 1 else None)
        for claim, values in differences.items()
    ]


def last_answers(results: Results) -> list[Answer]:
    """Return the answer to each claim of the last round that asked it, those for the claim first and open ones last."""
    last: dict[str, Answer] = {}
    later = [later_round(results, claims) for claims in (SECOND_CLAIMS, THIRD_CLAIMS)]
    for answer in (*first_round(results)[0], *chain.from_iterable(later)):
        for text in answer.claim.replaces:
            last.pop(text, None)
        last[answer.claim.text] = answer
    order = ("for", "against", "open")
    return sorted(last.values(), key=lambda answer: (order.index(answer.verdict), answer.needed.isdecimal()))
