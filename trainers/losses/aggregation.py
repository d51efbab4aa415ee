"""How much one token weighs in the loss of a mini-batch.

The weights are dealt out before a mini-batch is split into micro-batches: so a loss is the same for any split, and an
episode that needs no gradient still counts. One without a sampled token does not.
"""

from collections.abc import Sequence
from typing import Literal

Aggregation = Literal["token", "sample", "sum", "constant"]


def token_weights(lengths: Sequence[int], aggregation: Aggregation, longest: int = 1) -> list[float]:
    """The weight of each token of an episode, by the episodes' sampled tokens.

    `token`: every token of the mini-batch weighs the same, so long episodes weigh more (arXiv 2510.11701, eq. 4).
    `sample`: every episode weighs the same, a token of a long one less (the first GRPO; the sequence losses).
    `sum`: an episode's tokens are summed, and episodes averaged. `constant`: the same, divided by the `longest`
    response: no episode's length is in the denominator (Dr.GRPO).
    """
    if aggregation == "token":
        return [1 / max(1, sum(lengths))] * len(lengths)
    speaking = max(1, sum(length > 0 for length in lengths))
    if aggregation == "sample":
        return [1 / (speaking * max(1, length)) for length in lengths]
    return [1 / (speaking * (longest if aggregation == "constant" else 1))] * len(lengths)
