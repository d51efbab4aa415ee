"""How much better an episode was than the others of its group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_EPSILON = 1e-6


def group_advantages(rewards: Sequence[float], groups: Sequence[int]) -> NDArray[np.float64]:
    """`(reward - mean) / (std + 1e-6)` within each group, std with ddof 1 (arXiv 2510.11701, eq. 3).

    A group whose rewards are equal gets exact zeros: its rewards are compared, not a standard deviation, which
    rounding can leave above zero. A group of one has nothing to be compared with and gets its zero too.
    """
    rewards_E = np.asarray(rewards, np.float64)
    groups_E = np.asarray(groups)
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + _EPSILON)
    return advantages_E
