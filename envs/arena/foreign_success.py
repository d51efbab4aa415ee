"""Success in external environments: from info["success"], or from the reward.

Left out: the sum of an episode's rewards (`foreign`).
"""

import math
from typing import Any

from palaestra.errors import EnvironmentDefect, UsageError


class UndecidedSuccess(UsageError):
    """Raised for a reward that no setting classifies as success or failure."""


def success_of(name: str, success: Any, total: float, success_at: float | None) -> float:
    """Return info["success"] as a float. If it is None, return 1.0 if the total reward counts as a success, and 0.0
    otherwise."""
    if success is None and success_at is not None:
        return float(total >= success_at or math.isclose(total, success_at, abs_tol=1e-9))  # Ten times 0.1 is 1.
    if success is None:
        if total > 0 and not math.isclose(total, 1.0):
            raise UndecidedSuccess(
                f"{name} ended an episode with the reward {total:g} and no info['success'], which may be partial "
                "credit: give the option success_at, the least reward that is a success, such as success_at=1"
            )
        return float(total > 0)
    value = float(success) if isinstance(success, int | float) or hasattr(success, "__float__") else math.nan
    if not 0 <= value <= 1:
        raise EnvironmentDefect(f"{name} gave info['success'] = {success!r}; expected a number in [0, 1]")
    return value
