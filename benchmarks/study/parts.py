"""The parts of the study: which comparisons each has, and all of them together."""

import arms
import reagent_arms
import tree_arms

PARTS = {"algorithms": arms.COMPARISONS, "reagent": reagent_arms.COMPARISONS, "tree": tree_arms.COMPARISONS}
COMPARISONS = {name: one for part in PARTS.values() for name, one in part.items()}
STARTS = {**arms.STARTS, **reagent_arms.STARTS, **tree_arms.STARTS}
