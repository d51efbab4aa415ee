"""A model whose weights are divided among ranks by FSDP2, and what needs them whole.

Each layer's weights are gathered for its pass and dropped again; embeddings and output layer for the length of the
whole pass. What is divided are float32 weights: the optimizer steps on them, and layers compute with them rounded to
the type of the run, so they are masters and no copy is kept. Gradients are added over ranks in float32, not averaged:
a batch's weights already divide by all of its tokens.

What lies between ranks at rest is a shard of the weights, of their gradients and of the optimizer's state. Left out:
the passes that each rank makes over a batch (`passes`).
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.agents.adapters import effective_weights
from palaestra.errors import TrainingHalted
from palaestra.trainers.scale.ranks import Ranks

Result = TypeVar("Result")
_ROOT = "palaestra_root"
"""Where a divided model has what gathers it; not as a part of it, of which it would be a part itself."""


def divided(model: Any, ranks: Ranks) -> Any:
    """Divide a model among the ranks, in place. It keeps the names of its weights, and the type it computes in."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    weight = next(model.parameters())
    mesh = init_device_mesh(weight.device.type, (ranks.count,))
    policy = MixedPrecisionPolicy(weight.dtype, torch.float32, cast_forward_inputs=False)
    model.to("cpu")  # Each layer goes to its device when it is divided: float32 weights are never there as a whole.
    for each in model.parameters():
        each.data = each.data.float()
    for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    root: Any = fully_shard(_Root(model), mesh=mesh, mp_policy=policy)
    for module in root.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.__dict__[_ROOT] = root
    return model


def is_divided(model: Any) -> bool:
    """Whether its weights lie on several ranks."""
    return _ROOT in model.__dict__


def through(model: Any, work: Callable[[], Result]) -> Result:
    """Do something with a model's modules and weights. Of a divided one all ranks must do it, each with its own input;
    what comes out is tensors, and numbers beside them.
    """
    root = model.__dict__.get(_ROOT)
    if root is None:
        return work()
    result: Result = root(work)
    if not torch.is_grad_enabled():
        root.reshard()  # Else a backward pass does it.
    return result


class _Root(torch.nn.Module):
    """Runs what it is given while FSDP2 has the weights outside of layers gathered."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Result]) -> Result:
        """The pass."""
        return work()


@torch.no_grad()
def whole_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """All weights by name, in the type that is computed in, gathered one after the other; all ranks must take them all.
    An adapter is in them.
    """
    if not is_divided(model):
        yield from effective_weights(model)
        return
    for name, weight in model.named_parameters():
        yield name, weight.to(model.config.dtype).full_tensor()


def whole_model(model: Any, ranks: Ranks) -> Any:
    """A model as it can be exported: a divided one is gathered in the first rank's memory, and None on the others."""
    if not is_divided(model):
        return model
    tensors = dict[str, Tensor]()
    for name, weight in whole_weights(model):
        if ranks.first:
            tensors[name] = weight.cpu()
    if not ranks.first:
        return None
    with torch.device("meta"):
        found = type(model)(copy.deepcopy(model.config)).to(model.config.dtype)
    found.load_state_dict(tensors, strict=False, assign=True)
    found.tie_weights()
    found.generation_config = model.generation_config
    return found


def own_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole_number(tensor: Tensor) -> float:
    """A number that may be a sum over ranks."""
    return float(tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor)


def save_parts(tensors: Mapping[str, Tensor], folder: Path, ranks: Ranks) -> None:
    """Write tensors, each rank its own part, as safetensors; all ranks must do it, and all is written afterwards."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=ranks.group)
    except CheckpointException as error:  # Every rank hears of it; it is no Exception.
        rank, (reason, _) = next(iter(error.failures.items()))
        raise TrainingHalted(f"{folder} could not be written by rank {rank}: {reason}") from error


def load_parts(folder: Path, like: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Read the tensors in a folder's safetensors, however many ranks have written them.

    What has the shape of the weight of that name, behind the last slash, is divided as the weight is.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    about = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    found: dict[str, Tensor] = {}
    for key, one in about.items():
        weight = like.get(key.rpartition("/")[2])
        size, dtype = one.size, one.properties.dtype  # type: ignore[union-attr]
        same = weight is not None and weight.shape == size
        found[key] = torch.empty_like(weight.detach(), dtype=dtype) if same else torch.empty(size, dtype=dtype)  # type: ignore[union-attr]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        load(
            found,
            storage_reader=HuggingFaceStorageReader(str(folder)),
            process_group=ranks.group,
            no_dist=ranks.count == 1,
        )
    return found
