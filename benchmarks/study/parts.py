"""The parts of the study: which comparisons each has, and all of them together."""

import arms
import reagent_arms
import second_round
import third_round
import tree_arms

PARTS = {
    "algorithms": arms.COMPARISONS,
    "reagent": reagent_arms.COMPARISONS,
    "tree": tree_arms.COMPARISONS,
    "second": second_round.COMPARISONS,
    "third": third_round.COMPARISONS,
}
FIRST_ROUND = ("algorithms", "reagent", "tree")
"""Parts that share one correction for several contrasts; each later round has its own."""
COMPARISONS = {name: one for part in PARTS.values() for name, one in part.items()}
STARTS = {**arms.STARTS, **reagent_arms.STARTS, **tree_arms.STARTS, **second_round.STARTS}
