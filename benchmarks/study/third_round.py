"""The third round: contrasts that the earlier rounds left open, with new seeds and mostly three to four times as many.

Settings are those of the earlier rounds. Each arm has one learning rate, so that no run chooses for itself: that with
the higher mean AUC in the second round, and for trees the only one of the first round. The contrasts are
`THIRD_CLAIMS`, corrected among themselves, and open until all their seeds are there. The numbers of seeds were set from
the spread of the earlier rounds, for effects as large as those seen there, before the first run. Seeds are 400 and up,
and no pilot was made. `bounds-again` was added when half of `graded-again` had run, before any run of its own: each of
the second round's three contrasts of neighbouring bounds was below .05, so this one compares both ends.
"""

from dataclasses import replace

import second_round
import tree_arms
from arms import Comparison

FIRST_SEED = 400


def again(comparison: Comparison, seeds: int, arms: tuple[str, ...]) -> Comparison:
    """Return a comparison with some of its arms, the first of which the others are compared with, and new seeds."""
    named = {arm: comparison.arms[arm] for arm in arms}
    return replace(comparison, arms=named, against=arms[0], seeds=seeds, first_seed=FIRST_SEED)


COMPARISONS = {
    "graded-again": again(
        second_round.COMPARISONS["graded"],
        60,
        ("none, lr 2e-03", "random, lr 2e-03", "value, lr 2e-03", "value and damping, lr 2e-03"),
    ),
    "starved-again": again(second_round.COMPARISONS["starved"], 40, ("binary, lr 5e-04", "prs, lr 5e-04")),
    "bounds-again": again(second_round.COMPARISONS["bounds"], 30, ("0.20, lr 1e-03", "0.35, lr 1e-03")),
    "tree-again": again(tree_arms.COMPARISONS["tree-two-hop"], 20, ("plain", "tree-grpo")),
}
