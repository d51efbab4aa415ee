"""How each kind of part of a recipe is called. A part of your own is anything that is called in the same way."""

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
    """Chooses what is played next, and which groups make a batch."""

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> Sampler:
        """Return the sampler of a run, before its first step."""


@runtime_checkable
class ShapingPart(Protocol):
    """The terms of the training reward.

    It may have `reward_range`, the smallest and the largest sum of the terms, which VSPO reads, and
    `max_completion_length`, the longest response in tokens.
    """

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward, by name. Their sum is compared within a group."""


@runtime_checkable
class AdvantagePart(Protocol):
    """The advantage of each sample.

    It may promise more, which the audit then checks at each step. `ordered = True`: within a group a higher reward
    never has a lower advantage. `closed_form(batch, scores)`: the same values, computed in another way. Without a
    promise the audit checks that the values are finite, and one per sample or one per sampled token.
    """

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one value per sample: a number, or an array with one number for each of its sampled tokens."""


@runtime_checkable
class LossPart(Protocol):
    """The policy loss of a token."""

    def __call__(
        self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor"
    ) -> "PolicyLoss | Tensor":
        """Return the loss of each sampled token; `row_S` is the index of its token row."""


@runtime_checkable
class CorrectionPart(Protocol):
    """The weight of a token that other weights or another arithmetic sampled."""

    def __call__(self, log_ratio_S: NDArray[np.float64], row_S: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the factor of each token's loss, 0 to reject it. The log ratio is learner minus engine."""


@runtime_checkable
class KLPart(Protocol):
    """An estimator of the KL divergence from the reference policy."""

    def __call__(self, logprobs: "Tensor", reference: "Tensor") -> "Tensor":
        """Return an estimate for each token."""


@runtime_checkable
class AggregationPart(Protocol):
    """The loss weight of a token, which decides what weighs the same in a mini-batch."""

    def __call__(self, lengths: Sequence[int], longest: int) -> Sequence[float]:
        """Return the weight of one token of each episode, given its number of sampled tokens."""


@runtime_checkable
class JudgePart(Protocol):
    """Reads each episode as it ends; its score is one more term of the reward.

    It may have `at_once`, the number of episodes that are judged at once (64), `deadline`, the seconds for an episode
    (180), and `reward_range`, the smallest and the largest score.
    """

    def __call__(self, episode: Episode) -> Any:
        """Return the score, or a pair of the score and remarks by name, such as a critique. It may be a coroutine."""
