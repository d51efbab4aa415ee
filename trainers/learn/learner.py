"""The learner: the trained model with its optimizers and learning-rate schedule, which are what a checkpoint holds.

GRPO and imitation both use it. The learner also takes the optimizer step, and skips it if the gradient is not finite.
Not here: the computation of gradients (`update`, `imitation`), and saving a learner (`run.checkpoint`).
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from palaestra.agents import Agent
from palaestra.agents.adapters import adapted, adapter_off
from palaestra.agents.head import assume_head, head_of
from palaestra.agents.outline import is_outline
from palaestra.agents.policies.table import trained_engines
from palaestra.errors import TrainingHalted, UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.learn.forward import assume_sharing, shares_beginnings
from palaestra.trainers.learn.learning_rate import rate_at
from palaestra.trainers.learn.sequence_parallel import share_rows
from palaestra.trainers.losses.critic import Critic
from palaestra.trainers.losses.onednn_linear import fast_linear
from palaestra.trainers.scale.activation_checkpointing import checkpointed, prepare_checkpointing
from palaestra.trainers.scale.deepspeed_zero import ZeroMasters, ZeroSteps, is_zero, zero_divided
from palaestra.trainers.scale.fsdp import divided, through, trained_weights, whole_number, whole_weights
from palaestra.trainers.scale.master_weights import Masters
from palaestra.trainers.scale.optimizer_offload import HostMemory
from palaestra.trainers.scale.optimizers import make_optimizers
from palaestra.trainers.scale.ranks import ALONE, Ranks

RunConfigT = TypeVar("RunConfigT", bound=GRPOConfig | SFTConfig)
MAX_SKIPPED = 3
"""Number of consecutive optimizer steps that may be skipped."""


@dataclass(slots=True, eq=False)
class Learner(Generic[RunConfigT]):
    """A model in training, the agent whose engine samples from it, and the optimizer states."""

    agent: Agent
    model: Any
    config: RunConfigT
    step: int = 0
    """Number of steps taken so far, which is also the version of the weights."""
    reference: Any = None
    """Reference model of the KL; a copy of the initial model if none is passed. With an adapter it is the model
    itself, whose adapter is off while the reference is computed (`as_reference`). None if there is no KL."""
    steps: int = 0
    """Number of steps to take, which schedules need. A GRPO config sets it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """State of the batch source (sampler or data order) after this step, as plain data."""
    critic: Critic | None = field(init=False, default=None)
    """Value head; None if the recipe has no critic."""
    ranks: Ranks = ALONE
    """Ranks that the model is divided among."""
    masters: Masters = field(init=False)
    """Trained parameters, and the float32 master weights that the optimizers step instead."""
    optimizers: list[torch.optim.Optimizer] = field(init=False)
    rate_factor: float = field(init=False, default=1.0)
    """Factor of all learning rates, for a caller that changes it between two steps. A checkpoint does not hold it."""
    torn: bool = field(init=False, default=False)
    """True from the first change of the weights in a step until `publish`: meanwhile they belong to no step."""
    skipped: int = field(init=False, default=0)
    """Number of consecutive optimizer steps that were skipped."""
    _bases: list[float] = field(init=False)
    _host: HostMemory | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.config, GRPOConfig):
            self.steps = self.config.steps
            if self.config.recipe.critic is not None:
                self.critic = Critic(self.config.recipe.critic, self.model, self.config.seed)
            if self.config.recipe.kl.beta > 0 and self.reference is None:
                self.reference = self.model if adapted(self.model) else copy.deepcopy(self.model)
        if self.reference is not None and self.reference is not self.model:
            self.reference.requires_grad_(False)
        scale = self.config.scale
        if scale.gradient_checkpointing:
            prepare_checkpointing(self.model)
        if is_zero(self.model):
            self.masters = zero_masters = ZeroMasters(self.model)
            self.optimizers = [ZeroSteps(zero_masters)]
        else:
            self.masters = Masters(self.model)
            self.optimizers = make_optimizers(self.model, self.masters, self.config.optimizer, scale)
        self._bases = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        if scale.optimizer_offload:
            self._host = HostMemory(self.optimizers, self.masters)

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the agent's chat."""
        assert self.agent.chat is not None, "an agent with a model has a chat"
        return self.agent.chat.tokenizer

    @property
    def plays(self) -> bool:
        """Return whether this rank plays episodes."""
        return self.ranks.first or not (isinstance(self.config, GRPOConfig) and self.config.first_rank_plays)

    @property
    def rate(self) -> float:
        """Return the factor by which the learning rates are multiplied in the next step."""
        return self.rate_factor * rate_at(self.step, self.steps, self.config.optimizer)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Hold a context for forward passes and their backward passes, with linear layers by oneDNN where that is
        faster. With `scale.gradient_checkpointing` the layers' activations are checkpointed in it.
        """
        activations = checkpointed(self.model) if self.config.scale.gradient_checkpointing else nullcontext()
        with fast_linear(self.model), activations:
            yield

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """Yield the reference model of the KL during a `with` block; an adapter is off in the block."""
        with adapter_off(self.model) if self.reference is self.model else nullcontext():
            yield self.reference

    def descend(self, rate: float) -> float | None:
        """Take an optimizer step and discard the gradients. Return their norm, or None if the step was skipped.

        The step is skipped for model and critic if a gradient of either is not finite.
        """
        max_norm = self.config.optimizer.max_grad_norm
        norm = whole_number(self.masters.clip_gradients(max_norm))
        for gradient in () if self.critic is None else self.critic.gradients():
            self.ranks.add(gradient)
        critic_norm = 0.0 if self.critic is None else self.critic.clip_gradient(max_norm)
        is_finite = math.isfinite(norm) and math.isfinite(critic_norm)
        self.skipped = 0 if is_finite else self.skipped + 1
        if is_finite:
            self._step_optimizers(rate)
        self.masters.drop_gradients()
        if self.critic is not None and is_finite:
            self.critic.step(rate)
        elif self.critic is not None:
            self.critic.drop_gradient()
        return norm if is_finite else None

    def _step_optimizers(self, rate: float) -> None:
        """Let the optimizers step all weights, or one bucket after the other if their state is in host memory."""
        for optimizer, base in zip(self.optimizers, self._bases, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate
        for names in [list(self.masters.stepped)] if self._host is None else self._host.buckets():
            self.masters.take_gradients(names)
            for optimizer in self.optimizers:
                self._tear()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.masters.round_back(names)

    def require_gradients(self) -> None:
        """Raise `TrainingHalted` if the last `MAX_SKIPPED` optimizer steps were skipped. The skipped steps have not
        changed the weights.
        """
        if self.skipped >= MAX_SKIPPED:
            raise TrainingHalted(
                f"the gradients of the last {self.skipped} optimizer steps were not finite, so all were skipped; "
                "a lower learning_rate or max_grad_norm may help, from an earlier checkpoint"
            )

    def publish(self) -> None:
        """Make the engines sample from the current weights. An engine that shares the weights copies nothing."""
        for engine in trained_engines(self.agent):
            if engine.shares_memory and not engine.shares_weights and torch.cuda.is_available():
                torch.cuda.empty_cache()  # Give unused memory back: the engine's process needs it.
            tensors = self.model.named_parameters() if engine.shares_weights else whole_weights(self.model)
            if adapted(self.model) and getattr(engine, "takes_adapters", False):
                tensors = trained_weights(self.model)
            engine.update_weights(tensors, version=self.step)
            if engine.shares_memory:  # The engine had released its memory for the update.
                engine.reclaim()
        self.torn = False

    def _tear(self) -> None:
        self.torn = True


def to_learn(model: Any, ranks: Ranks, config: GRPOConfig | SFTConfig) -> Any:
    """Return what the ranks train: with one rank the model itself, with several a copy that is sharded over them."""
    if ranks.count == 1:
        return model
    if config.scale.sharding == "deepspeed":
        learning = zero_divided(model, ranks, config.optimizer, config.scale)
    else:
        learning = divided(model, ranks)
    if is_outline(model):
        with torch.no_grad():
            through(learning, partial(_probe, learning))
        return learning
    assume_head(learning, model)
    assume_sharing(learning, model)
    if (size := config.scale.sequence_parallel_size) > 1:
        if not shares_beginnings(learning):
            raise UsageError(
                f"sequence_parallel_size is {size}, and rows of a {type(model).__name__} are padded here, which "
                "several ranks cannot compute together; set it to 1"
            )
        share_rows(learning, ranks, config.scale)
    return learning


def _probe(learning: Any) -> None:
    """Look for the head and for shared beginnings while weights are gathered; an outline has none to look at."""
    head_of(learning)
    shares_beginnings(learning)
