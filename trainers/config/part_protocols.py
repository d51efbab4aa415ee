"""The call of each kind of part of a recipe. A part of your own is any object that can be called in the same way.

Arguments before a `/` are passed by their place, so a part of your own may give them other names.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Episode
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.losses.group_advantages import Advantages
from palaestra.trainers.losses.policy import PolicyLoss
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.sampler import Sampler
from palaestra.trainers.samplers.task_of_group import TaskCount

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class SamplerPart(Protocol):
    """Part that creates the sampler of a run: it chooses which task is played next, and which groups form a batch."""

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0, /) -> Sampler:
        """Return the sampler of a run, before its first step."""


@runtime_checkable
class ShapingPart(Protocol):
    """Part that computes the terms of an episode's training reward.

    It may have the attributes `reward_range`, the smallest and the largest sum of the terms, which VSPO reads, and
    `max_completion_length`, the longest response in tokens.
    """

    def __call__(self, episode: Episode, /) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward, by name. Their sum is compared within a group."""


@runtime_checkable
class AdvantagePart(Protocol):
    """Part that computes the advantage of each sample.

    The audit checks at each step that the values are finite, with one per sample or one per sampled token. Two optional
    attributes promise more, which is then checked too. `ordered = True`: within a group a higher reward never has a
    lower advantage. `closed_form(batch, scores)`: a function that computes the same values in another way.
    """

    def __call__(self, batch: Batch, scores: BatchScores, /) -> Advantages:
        """Return one value per sample: a number, or an array with one number for each of its sampled tokens."""


@runtime_checkable
class LossPart(Protocol):
    """Part that computes the policy loss of each sampled token."""

    def __call__(
        self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor", /
    ) -> "PolicyLoss | Tensor":
        """Return the loss of each sampled token; `row_S` is the index of its token row.

        A `PolicyLoss` also says which tokens were clipped; of a bare tensor no clipping is reported.
        """


@runtime_checkable
class CorrectionPart(Protocol):
    """Part that computes loss factors for tokens that were sampled with other weights or with other arithmetic."""

    def __call__(self, log_ratio_S: NDArray[np.float64], row_S: NDArray[np.int_], /) -> NDArray[np.float64]:
        """Return the factor of each token's loss, 0 to reject the token.

        `log_ratio_S` is the learner's log-prob minus the engine's; `row_S` is the index of the token's row.
        """


@runtime_checkable
class KLPart(Protocol):
    """Part that estimates the KL divergence from the reference policy for each token."""

    def __call__(self, logprobs: "Tensor", reference: "Tensor", /) -> "Tensor":
        """Return the estimate for each token, from its log-probs under both policies."""


@runtime_checkable
class AggregationPart(Protocol):
    """Part that computes the loss weight of each token, so that tokens or episodes, say, have equal weight."""

    def __call__(self, lengths: Sequence[int], longest: int, /) -> Sequence[float]:
        """Return the weight of one token of each episode, given its number of sampled tokens."""


@runtime_checkable
class JudgePart(Protocol):
    """Part that scores each episode when it ends. The score is one more term of the training reward.

    It may have the attributes `at_once`, the number of episodes that are judged at the same time (64 by default),
    `deadline`, the seconds for one episode (180 by default), and `reward_range`, the smallest and the largest score.
    """

    def __call__(self, episode: Episode, /) -> Any:
        """Return the score, or a pair of score and dict of remarks, such as a critique. This may be a coroutine."""
