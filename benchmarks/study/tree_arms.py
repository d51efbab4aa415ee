"""The comparison of trees of episodes with plain groups, at the same number of sampled tokens, in two environments."""

from arms import Arm, Comparison
from start_models import Phase, StartModel

STARTS = {"two-hop": StartModel((Phase("palaestra/TwoHop-v0", tool_rate=0.3, steps=500),))}
_TREES = {"name": "tree", "trees": 4, "rounds": 1}
_ARMS = {
    "plain": Arm(),
    "tree-grpo": Arm({"sampler": _TREES, "advantage": "tree"}),
    "arpo": Arm({"sampler": {**_TREES, "branch_at": "entropy"}}),
}
_CLAIM = "A group of four episodes and four branches of them learns sooner than one of eight episodes."
_RATE = {"learning_rate": 7e-4}
COMPARISONS = {
    "tree-two-hop": Comparison(
        "Trees and plain groups, two hops", _CLAIM, "two-hop", "palaestra/TwoHop-v0", _ARMS, "plain", 40_000, _RATE,
        points=12,
    ),
    "tree-trail": Comparison(
        "Trees and plain groups, trail", _CLAIM, "trail-real", "study/Trail-v0", _ARMS, "plain", 40_000, _RATE,
        {"kinds": "city", "fail": 0.3}, points=12,
    ),
}  # fmt: skip
