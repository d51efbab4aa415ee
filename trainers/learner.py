"""Who learns, and everything that learning changes: what a checkpoint must hold, and nothing else.

GRPO and imitation share it: a model, its optimizers, the schedule of their learning rates, and the step itself, which
is not taken along a gradient that is no number. Left out: where gradients come from (`update`, `sft`), and how a
learner is written down (`checkpoint`).
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from palaestra.agents import Agent
from palaestra.agents.adapters import adapted, adapter_off
from palaestra.agents.policies.table import trained_engines
from palaestra.errors import TrainingHalted
from palaestra.trainers.config import GRPOConfig, OptimizerConfig
from palaestra.trainers.critic import Critic
from palaestra.trainers.scale.checkpointing import checkpointed, prepare_checkpointing
from palaestra.trainers.scale.host_memory import HostMemory
from palaestra.trainers.scale.masters import Masters
from palaestra.trainers.scale.optimizers import make_optimizers
from palaestra.trainers.scale.ranks import ALONE, Ranks
from palaestra.trainers.scale.shards import whole_number, whole_weights
from palaestra.trainers.sft_config import SFTConfig

Config = TypeVar("Config", bound=GRPOConfig | SFTConfig)
MAX_SKIPPED = 3
"""Optimizer steps in a row that may be skipped."""


@dataclass(slots=True, eq=False)
class Learner(Generic[Config]):
    """A model in training, the agent whose engine samples from it, and the optimizers' memory."""

    agent: Agent
    model: Any
    config: Config
    step: int = 0
    """Steps taken so far; also the version of the weights."""
    reference: Any = None
    """The policy that KL is measured from: the model as it is now, if none is given; the model itself where it has an
    adapter, which is off while it is asked (`as_reference`). None where there is no KL."""
    steps: int = 0
    """How many it is to take, which schedules need to know; the config's, where it says so."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Where whoever decides what is learned next stood after this step, as plain data."""
    critic: Critic | None = field(init=False, default=None)
    """What expects rewards, where the recipe has one."""
    ranks: Ranks = ALONE
    """Among which the model is divided."""
    masters: Masters = field(init=False)
    """What learns, and the float32 parameters that are stepped on in its place."""
    optimizers: list[torch.optim.Optimizer] = field(init=False)
    torn: bool = field(init=False, default=False)
    """True from a step's first change of the weights to `publish`: they are then those of no step."""
    skipped: int = field(init=False, default=0)
    """Optimizer steps in a row that were not taken."""
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
        self.masters = Masters(self.model)
        self.optimizers = make_optimizers(self.model, self.masters, self.config.optimizer, scale)
        self._bases = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(self._tear)
        if scale.optimizer_offload:
            self._host = HostMemory(self.optimizers, self.masters)

    @property
    def tokenizer(self) -> Any:
        """Of its chat."""
        assert self.agent.chat is not None, "an agent with a model has a chat"
        return self.agent.chat.tokenizer

    @property
    def rate(self) -> float:
        """Share of the learning rate in the step to come."""
        return rate_at(self.step, self.steps, self.config.optimizer)

    def computing(self) -> AbstractContextManager[None]:
        """Around passes that a backward pass follows: layers are checkpointed in them, where that is asked for."""
        return checkpointed(self.model) if self.config.scale.gradient_checkpointing else nullcontext()

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The model that KL is measured from, for the length of a block."""
        with adapter_off(self.model) if self.reference is self.model else nullcontext():
            yield self.reference

    def descend(self, rate: float) -> float | None:
        """Take an optimizer step along the gradients, which are gone then; their norm, or None where it was skipped."""
        with nullcontext() if self._host is None else self._host.brought():
            self.masters.take_gradients()
            parameters = self.masters.stepped.values()
            norm = whole_number(torch.nn.utils.clip_grad_norm_(parameters, self.config.optimizer.max_grad_norm))
            taken = math.isfinite(norm)
            self.skipped = 0 if taken else self.skipped + 1
            for optimizer, base in zip(self.optimizers, self._bases, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = base * rate
                if taken:
                    optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            if taken:
                self.masters.round_back()
        return norm if taken else None

    def require_gradients(self) -> None:
        """Refuse to go on where one optimizer step after the other is skipped. The weights are those of the last."""
        if self.skipped >= MAX_SKIPPED:
            raise TrainingHalted(
                f"the gradients of the last {self.skipped} optimizer steps were no numbers, and none of them was "
                "taken; a lower learning_rate or max_grad_norm may help, from an earlier checkpoint"
            )

    def publish(self) -> None:
        """Let the engines sample from the weights as they are now. One that shares them has nothing to copy."""
        for engine in trained_engines(self.agent):
            shared = engine.shares_weights
            tensors = self.model.named_parameters() if shared else whole_weights(self.model)
            engine.update_weights(tensors, version=self.step)
            if shared:  # Its cache was given back while the learner worked.
                engine.reclaim()
        self.torn = False

    def _tear(self, *_: object) -> None:
        self.torn = True


def rate_at(step: int, steps: int, config: OptimizerConfig) -> float:
    """Share of the learning rate in a step, counted from 0: up in equal parts, then level, in a line or a cosine."""
    rising = int(config.warmup_share * steps)
    if step < rising:
        return (step + 1) / rising
    if config.lr_schedule == "constant":
        return 1.0
    if config.lr_schedule == "linear":
        return 1 - 0.95 * (step - rising) / max(1, steps - rising - 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
