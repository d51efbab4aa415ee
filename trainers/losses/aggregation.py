"""Compute the loss weight of each token of a mini-batch.

The weights are computed before a mini-batch is split into micro-batches, so the loss is the same for any split. An
episode that needs no gradient still counts in the weights; an episode without a sampled token does not.
"""

from collections.abc import Callable, Sequence

from palaestra.errors import ConfigError

AGGREGATIONS = {name: name for name in ("token", "sample", "sum", "constant")}
"""Aggregations by name."""
Aggregation = str | Callable[[Sequence[int], int], Sequence[float]]
"""A name, or a function of your own."""


def token_weights(lengths: Sequence[int], aggregation: Aggregation, longest: int = 1) -> list[float]:
    """Return for each episode the weight of one of its tokens. `lengths` are the numbers of sampled tokens.

    `token`: all tokens of the mini-batch have the same weight, so long episodes have more (arXiv 2510.11701, eq. 4).
    `sample`: all episodes have the same weight, so tokens of long ones have less (the first GRPO; sequence losses).
    `sum`: tokens of an episode are summed, and episodes averaged. `constant`: as `sum`, but divided by the `longest`
    response, so that the weight does not depend on an episode's length (Dr.GRPO). A function of your own is called with
    `lengths` and `longest`.
    """
    if callable(aggregation):
        weights = [float(weight) for weight in aggregation(lengths, longest)]
        if len(weights) != len(lengths):
            raise ConfigError(f"the aggregation returned {len(weights)} weights for {len(lengths)} episodes")
        return weights
    if aggregation == "token":
        return [1 / max(1, sum(lengths))] * len(lengths)
    speaking = max(1, sum(length > 0 for length in lengths))
    if aggregation == "sample":
        return [1 / (speaking * max(1, length)) for length in lengths]
    return [1 / (speaking * (longest if aggregation == "constant" else 1))] * len(lengths)
