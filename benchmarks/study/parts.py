"""The parts of the study: which comparisons each has, and all of them together."""

import arms
import reagent_arms
import second_round
import tree_arms

PARTS = {
    "algorithms": arms.COMPARISONS,
    "reagent": reagent_arms.COMPARISONS,
    "tree": tree_arms.COMPARISONS,
    "second": second_round.COMPARISONS,
}
COMPARISONS = {name: one for part in PARTS.values() for name, one in part.items()}
STARTS = {**arms.STARTS, **reagent_arms.STARTS, **tree_arms.STARTS, **second_round.STARTS}
