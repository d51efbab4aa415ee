"""Shard a model over ranks with DeepSpeed's ZeRO-3, in place of FSDP2 (`fsdp`), which takes it from here.

DeepSpeed partitions the weights, gathers them for the pass of a module, sums the gradients over the ranks in each
backward pass, clips them and takes the optimizer step. A rank holds an equal part of each flat weight. A checkpoint
gets these parts as flat sharded tensors, so any number of ranks can read them. DeepSpeed's own checkpoints are pickles.

DeepSpeed averages gradients over the ranks, and the token weights of a loss already divide by all tokens of a batch. So
the gradients that enter the model are multiplied by the number of ranks. Left out: rows that several ranks compute
together (`learn.sequence_parallel`), moments in 8 bits, and DeepSpeed's offload and division of experts.
"""

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from palaestra.errors import MissingExtra
from palaestra.trainers.config.sections_config import OptimizerConfig, ScaleConfig
from palaestra.trainers.scale.fsdp import ROOT, RootModule, own_part
from palaestra.trainers.scale.master_weights import Masters
from palaestra.trainers.scale.optimizers import adamw
from palaestra.trainers.scale.ranks import Ranks

_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of AdamW's moments."""


def zero_divided(whole: Any, ranks: Ranks, config: OptimizerConfig, scale: ScaleConfig) -> Any:
    """Return a copy of a model that ZeRO-3 shards over the ranks. Only one whole weight is copied at a time. Names and
    compute dtype stay.
    """
    deepspeed = imported()
    weights = dict(whole.named_parameters())
    # Weights without numbers, which `_Source` fills and DeepSpeed partitions one after the other.
    empty = {id(weight): Parameter(weight.new_empty(0), weight.requires_grad) for weight in weights.values()}
    model = copy.deepcopy(whole, empty)
    root = RootModule(model)
    deepspeed.zero.Init(module=_Source(model, weights), mem_efficient_linear=False)
    deepspeed.zero.register_external_parameter(root, model.get_output_embeddings().weight)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=root,
        optimizer=adamw(trained, config, scale),
        config=_settings(config, trained[0].dtype == torch.bfloat16),
        dist_init_required=False,
    )
    for weight in model.parameters():
        weight.full_tensor = partial(_whole, weight)
    model.__dict__[ROOT] = Zero(engine, ranks.count)
    return model


@cache
def imported() -> Any:
    """Return the module deepspeed, which then logs warnings only and compiles nothing. Raise `MissingExtra` if it is
    not installed.
    """
    require_deepspeed("scale.sharding deepspeed")
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    log = logging.getLogger("DeepSpeed")
    log.addFilter(lambda record: record.levelno >= logging.WARNING)  # Its level is set while it is imported.
    # torch 2.13 has new names for two functions that DeepSpeed calls.
    warnings.filterwarnings("ignore", ".*(all_gather_into|reduce_scatter)_tensor.* is deprecated", FutureWarning)
    import deepspeed

    # On CPUs it would compile an operation for inference when ranks meet.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def require_deepspeed(purpose: str) -> None:
    """Raise `MissingExtra` if deepspeed is not installed."""
    if find_spec("deepspeed") is None:
        raise MissingExtra("deepspeed", "deepspeed", purpose)


def _settings(config: OptimizerConfig, in_bfloat16: bool) -> dict[str, Any]:
    """Return DeepSpeed's settings: gradients are accumulated and sent in float32, and no weight stays gathered."""
    return {
        "train_micro_batch_size_per_gpu": 1,  # It decides nothing here: no data loader of DeepSpeed is used.
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": in_bfloat16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "memory_efficient_linear": False,  # It would replace torch's `linear` for all callers.
        },
    }


def is_zero(model: Any) -> bool:
    """Return whether ZeRO-3 shards the weights of a model."""
    return isinstance(model.__dict__.get(ROOT), Zero)


class _Source(torch.nn.Module):
    """Parameters that are filled when they are asked for, from those of a whole model."""

    def __init__(self, model: Any, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.targets, self.weights = dict(model.named_parameters()), weights

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        for name, weight in self.targets.items():
            weight.data = self.weights[name].detach().clone()
            yield weight


class Zero:
    """DeepSpeed's engine of a sharded model. `fsdp` uses it as it uses the root of a model that FSDP2 shards."""

    def __init__(self, engine: Any, count: int) -> None:
        self.engine, self.count = engine, count

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Call a function of the model in a pass of the engine."""
        return self.engine(lambda: self._summed(work()))

    def _summed(self, result: Any) -> Any:
        """Multiply the gradients of these outputs by the number of ranks, since DeepSpeed divides by it."""
        if isinstance(result, tuple):
            return tuple(self._summed(each) for each in result)
        if torch.is_tensor(result) and result.requires_grad:
            result.register_hook(self._times_ranks)  # type: ignore[no-untyped-call]
        return result

    def _times_ranks(self, gradient: Tensor | None) -> Tensor | None:
        return None if gradient is None else gradient * self.count

    def reshard(self) -> None:
        """Do nothing: DeepSpeed frees the weights of each module after its pass."""

    def set_requires_gradient_sync(self, now: bool) -> None:
        """Do nothing: ZeRO-3 sums gradients in each backward pass."""


def _whole(weight: Any) -> Tensor:
    """Return a whole weight, gathered on every rank."""
    with imported().zero.GatheredParameters([weight]):
        return weight.detach().clone()  # type: ignore[no-any-return]


class ZeroMasters(Masters):
    """The float32 weights that DeepSpeed's optimizer steps: this rank's part of each flat weight."""

    def __init__(self, model: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        self.zero: Zero = model.__dict__[ROOT]
        self.weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        device = next(iter(self.weights.values())).device.type
        mesh = init_device_mesh(device, (self.zero.count,))
        self.trained: dict[str, Any] = {
            name: DTensor.from_local(
                self.part(weight, imported().utils.safe_get_local_fp32_param(weight)),
                mesh,
                [Shard(0)],
                run_check=False,
                shape=torch.Size([weight.ds_numel]),
                stride=(1,),
            )
            for name, weight in self.weights.items()
        }
        self.stepped = {name: Parameter(own_part(shard)) for name, shard in self.trained.items()}
        self._sums = {}

    @staticmethod
    def part(weight: Any, padded: Tensor) -> Tensor:
        """Return the part of a rank without the padding that makes all parts equally long."""
        begin = weight.ds_zero_partition_rank * len(padded)
        return padded[: max(0, min(len(padded), weight.ds_numel - begin))]

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Return the norm of the gradients. DeepSpeed clips them in its step."""
        get = imported().utils.safe_get_local_grad
        squares = torch.stack([get(weight).float().square().sum() for weight in self.weights.values()]).sum()
        torch.distributed.all_reduce(squares)
        return squares.sqrt()

    def take_gradients(self, names: Iterable[str]) -> None:
        """Do nothing: DeepSpeed has the gradients."""

    def drop_gradients(self) -> None:
        """Discard all gradients."""
        self.zero.engine.optimizer.zero_grad()

    @torch.no_grad()
    def round_back(self, names: Iterable[str] | None = None) -> None:
        """Do nothing: DeepSpeed's step has rounded the weights."""

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these tensors into the masters. The model's weights are the same, rounded: a checkpoint holds both."""
        for name, tensor in tensors.items():
            self.stepped[name].copy_(own_part(tensor))


class ZeroSteps(torch.optim.Optimizer):
    """The step of DeepSpeed's engine, as an optimizer of the parts in `ZeroMasters`. Its state are parts of the moments
    that DeepSpeed's flat tensors hold.
    """

    def __init__(self, masters: ZeroMasters) -> None:
        self._masters, self._engine = masters, masters.zero.engine
        self._inner: torch.optim.Optimizer = self._engine.optimizer.optimizer
        super().__init__(list(masters.stepped.values()), {"lr": self._inner.param_groups[0]["lr"]})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Clip the gradients that DeepSpeed has summed, step the masters, and round them into the weights."""
        for group in self._inner.param_groups:
            group["lr"] = self.param_groups[0]["lr"]
        self._engine.step()
        self._view()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into DeepSpeed's moments."""
        states, parts = state_dict["state"], list(self._masters.stepped.values())
        if not states:  # It was saved before the first step.
            return
        step = next(iter(states.values()))["step"]
        for flat in self._engine.optimizer.fp32_partitioned_groups_flat:
            self._inner.state[flat] = {"step": step.clone(), **{kind: torch.zeros_like(flat) for kind in _MOMENTS}}
        self._view()
        for place, saved in states.items():
            for kind in _MOMENTS:
                self.state[parts[place]][kind].copy_(saved[kind])

    def _view(self) -> None:
        """Let the state of each part be a part of DeepSpeed's state."""
        part_of, moment = self._masters.part, imported().utils.safe_get_local_optimizer_state
        step = next(iter(self._inner.state.values()))["step"]
        for name, part in self._masters.stepped.items():
            weight = self._masters.weights[name]
            moments = {kind: part_of(weight, moment(weight, kind)) for kind in _MOMENTS}
            self.state[part] = {"step": step.clone(), **moments}
