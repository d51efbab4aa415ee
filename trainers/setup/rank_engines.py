"""The engine that each rank of a run gets.

Either each rank plays its share of a batch, with an engine of its own, or the first rank plays alone for all of them
(`GRPOConfig.first_rank_plays`): then it alone has an engine and servers.
"""

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any

from palaestra.agents.engines.process import ProcessEngine
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.local_model import EngineMaker
from palaestra.protocols import Completion, PauseMode, Request
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.setup.choose_engine import vllm_engine


def engine_maker(config: GRPOConfig | SFTConfig) -> EngineMaker:
    """Return the constructor of the engine that a config names; for imitation, of the built-in engine."""
    if isinstance(config, SFTConfig):
        return TorchEngine
    engine = config.engine
    built_in: dict[str, Any] = {"cache_tokens": config.play.cache_tokens, "precision": engine.sampling_precision}
    if config.first_rank_plays and not here().first:
        return IdleEngine
    if engine.kind in ("auto", "torch"):
        return partial(TorchEngine if here().count == 1 else WholeEngine, **built_in)
    if engine.kind == "process":
        return partial(ProcessEngine, **built_in, deadline=engine.restart_seconds)
    return partial(vllm_engine, config)


class WholeEngine(TorchEngine):
    """The built-in engine with its own copy of all weights, for a rank whose learner holds only a part of them."""

    @property
    def shares_weights(self) -> bool:
        """Return False: the engine gets the learner's weights by `update_weights`."""
        return False

    takes_adapters = True
    """Of a model with an adapter only the adapter is sent: the engine has the same base, which never changes."""

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Copy these weights into the model. Weights that are not trained need not be among them."""
        frozen = [(name, weight) for name, weight in self.model.named_parameters() if not weight.requires_grad]
        super().update_weights(chain(tensors, frozen), version)


class IdleEngine:
    """The engine of a rank that plays nothing. It takes part in gathering the weights for the rank that plays, tensor
    by tensor, and keeps none of them.
    """

    shares_weights = False
    shares_memory = False
    sampled = 0

    def __init__(self, model: Any, stops: Iterable[int], **options: Any) -> None:
        self.version = 0

    def submit(self, request: Request) -> int:
        """Raise an error: another rank plays."""
        raise AssertionError("the first rank plays alone")

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return no completions."""
        return []

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Iterate over the weights, which are gathered by all ranks, and drop each of them."""
        for _ in tensors:
            pass
        self.version = version

    def cancel(self, ticket: int) -> None:
        """Do nothing: there are no turns."""

    def pause(self, mode: PauseMode = "keep") -> None:
        """Do nothing: nothing is sampled."""

    def resume(self) -> None:
        """Do nothing: nothing was stopped."""

    def release(self) -> None:
        """Do nothing: no memory is held."""

    def reclaim(self) -> None:
        """Do nothing: nothing was released."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
