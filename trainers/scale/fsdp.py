"""Shard the weights of a model over ranks with FSDP2, and gather whole weights where they are needed.

The weights of a layer are gathered for its pass and freed again; those of embeddings and output layer stay gathered
for the whole pass. The shards are float32: the optimizer updates them, and layers compute with them rounded to the
dtype of the run, so the shards are the master weights, without a copy. Gradients are summed over ranks in float32, not
averaged: the token weights already divide by all tokens of the batch.

Between passes each rank holds one shard of weights, gradients and optimizer state. Left out: the passes that each rank
makes over a batch (`learn.rank_passes`).
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.agents.adapters import adapter_weights, effective_weights
from palaestra.agents.outline import device_of, read_rows
from palaestra.errors import TrainingHalted
from palaestra.trainers.scale.ranks import Ranks

GatheredT = TypeVar("GatheredT")
ROOT = "palaestra_root"
"""Attribute of a sharded model that holds its FSDP root. It is not a submodule, because the root contains the model."""


def divided(whole: Any, ranks: Ranks) -> Any:
    """Return a copy of a model that is sharded over the ranks: only shards are copied, of an outline from its files.
    Names and compute dtype stay.

    Frozen weights, as an adapter's base has, stay in the compute dtype: they need no master weights.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    weights = dict(whole.named_parameters())
    dtype, device = next(iter(weights.values())).dtype, device_of(whole)
    mesh = init_device_mesh(device.type, (ranks.count,))
    policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    # A copy whose weights have no storage until they are sharded.
    model = copy.deepcopy(whole, {id(each): _without_storage(each) for each in weights.values()})
    for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(RootModule(model), mesh=mesh, mp_policy=policy)
    for module in root.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    root._apply(lambda each: torch.empty_like(each, device=device) if each.is_meta else each)
    for name, shard in model.named_parameters():
        with torch.no_grad():
            # In the compute dtype first, as a model that is read whole has it.
            own_part(shard).copy_(read_rows(whole, name, begin_of(shard), own_part(shard).shape[0]).to(dtype))
    model.__dict__[ROOT] = root
    return model


def _without_storage(weight: torch.nn.Parameter) -> torch.nn.Parameter:
    dtype = torch.float32 if weight.requires_grad else weight.dtype
    return torch.nn.Parameter(torch.empty_like(weight, device="meta", dtype=dtype), weight.requires_grad)


def part_like(whole: Tensor, shard: Tensor) -> Tensor:
    """Return the part of a whole tensor that is this rank's part of a sharded one."""
    size, begin = own_part(shard).shape[0], begin_of(shard)
    return whole[begin : begin + size]


def begin_of(shard: Any) -> int:
    """Return the index of the first row of this rank's shard."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(shard.shape, shard.device_mesh, shard.placements)
    return int(offset[0])


def sum_gradients(model: Any, *, now: bool) -> None:
    """Choose whether the next backward pass sums the gradients over the ranks. Until then each rank keeps its own sums
    of whole gradients. A model that is not sharded has nothing to sum.
    """
    if is_divided(model):
        model.__dict__[ROOT].set_requires_gradient_sync(now)


def is_divided(model: Any) -> bool:
    """Return whether the weights of a model are sharded over ranks."""
    return ROOT in model.__dict__


def through(model: Any, work: Callable[[], GatheredT]) -> GatheredT:
    """Call `work`, which uses modules and weights of the model, and return its result: tensors and numbers. If the
    model is sharded, all ranks must call this function, each with its own `work`.
    """
    root = model.__dict__.get(ROOT)
    if root is None:
        return work()
    result: GatheredT = root(work)
    if not torch.is_grad_enabled():
        root.reshard()  # Otherwise the backward pass does it.
    return result


class RootModule(torch.nn.Module):
    """Root module: calls a function while the weights outside of the layers are gathered."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], GatheredT]) -> GatheredT:
        """Call the function and return its result."""
        return work()


@torch.no_grad()
def whole_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights by name, in the compute dtype, gathered one at a time. All ranks must iterate to the
    end. An adapter is merged into the weights.
    """
    if not is_divided(model):
        yield from effective_weights(model)
        return
    yield from effective_weights(model, lambda weight: _gathered(weight, model.config.dtype))


@torch.no_grad()
def trained_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the trained weights of a sharded model by their own names, as `whole_weights` yields all."""
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield name, _gathered(weight, model.config.dtype)


def _gathered(weight: Any, dtype: torch.dtype) -> Tensor:
    whole: Tensor = weight.to(dtype).full_tensor()
    return whole


def whole_model(model: Any, ranks: Ranks) -> Any:
    """Return a model that can be exported. A sharded model is gathered on rank 0, and the other ranks get None."""
    if not is_divided(model):
        return model
    tensors = dict[str, Tensor]()
    for name, weight in whole_weights(model):
        if ranks.first:
            tensors[name] = weight.cpu()
    if not ranks.first:
        return None
    with torch.device("meta"):
        whole = type(model)(copy.deepcopy(model.config)).to(model.config.dtype)
    whole.load_state_dict(tensors, strict=False, assign=True)
    whole.tie_weights()
    whole.generation_config = model.generation_config
    return whole


def whole_adapter(model: Any) -> dict[str, Tensor]:
    """Return the weights of a model's adapter under the names of its files, gathered on every rank."""
    if not is_divided(model):
        return adapter_weights(model)
    return {name: _gathered(weight, model.config.dtype) for name, weight in adapter_weights(model).items()}


def own_part(tensor: Tensor) -> Tensor:
    """Return the shard of a tensor on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shape_of(weight: Any) -> torch.Size:
    """Return the shape of a whole weight of a model."""
    return getattr(weight, "ds_shape", weight.shape)  # type: ignore[no-any-return]


def is_shard(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks."""
    return hasattr(tensor, "to_local")


def as_part_of(shard: Any, part: Tensor) -> Tensor:
    """Return the tensor whose shards are the `part` of each rank, sharded like `shard`; `part` itself if `shard` is not
    sharded, or has another shape.
    """
    if not is_shard(shard) or part.shape != own_part(shard).shape:
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )


def whole_number(tensor: Tensor) -> float:
    """Return a number from a scalar tensor, which may be a sum over ranks."""
    return float(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)


def save_parts(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Write tensors as safetensors, each rank its own shard. All ranks must call this function; it waits for all."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=ranks.group)
    except CheckpointException as error:  # It is raised on every rank, and is not an Exception.
        rank, (reason, _) = next(iter(error.failures.items()))
        raise TrainingHalted(f"{folder} could not be written by rank {rank}: {reason}") from error


def load_parts(folder: Path, like: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Read the tensors in a folder's safetensors, whatever number of ranks and whichever sharding wrote them.

    Of a tensor that is as large as the weight with its name (the part after the last slash) only this rank's part is
    returned; it is read alone if the weight has the same shape.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    about = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    tensors: dict[str, Tensor] = {}
    for key, tensor_metadata in about.items():
        weight = like.get(key.rpartition("/")[2])
        size, dtype = tensor_metadata.size, tensor_metadata.properties.dtype  # type: ignore[union-attr]
        same = weight is not None and weight.shape == size
        tensors[key] = torch.empty_like(weight.detach(), dtype=dtype) if same else torch.empty(size, dtype=dtype)  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(folder)),
            process_group=ranks.group,
            no_dist=ranks.count == 1,
        )
    return {key: _own_part_like(value, like.get(key.rpartition("/")[2])) for key, value in tensors.items()}


def _own_part_like(value: Tensor, weight: Tensor | None) -> Tensor:
    """Return this rank's part of a tensor that was read for a weight. FSDP2 has written it in the weight's shape, and
    ZeRO-3 flat.
    """
    if weight is None or is_shard(value) or not value.ndim or value.numel() != weight.numel():
        return own_part(value)
    value = value.view(weight.shape)
    return part_like(value, weight) if is_shard(weight) else value
