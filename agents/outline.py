"""A model without weights, whose weights are read part by part from the files that hold them.

For a process that keeps a shard of each weight: no weight is read whole. Left out: models whose files hold other
tensors than the model has (experts that are fused on loading, adapters). They must be read whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from safetensors import safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """The device of an outlined model, and the file of each of its weights."""

    device: torch.device
    files: Mapping[str, Path]


_sources: WeakKeyDictionary[Any, _ModelFiles] = WeakKeyDictionary()


class _WithoutStorage(TorchFunctionMode):
    """Creates empty tensors, as weights are, on the meta device. Tables that a module computes keep their numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


def outlined(name: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the model of a folder or hub name with weights on the meta device and buffers on `device`; None if its
    files do not hold each weight under its own name and with its shape.
    """
    files = _files(name)
    with _WithoutStorage():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name, trust_remote_code=False), dtype=dtype)
    for module in model.modules():
        for key, weight in module._parameters.items():
            if weight is not None and not weight.is_meta:  # It was created with ones or zeros in it.
                module._parameters[key] = torch.nn.Parameter(weight.to("meta"), weight.requires_grad)
        for key, buffer in module._buffers.items():
            module._buffers[key] = buffer if buffer is None or buffer.is_meta else buffer.to(device)
    model.tie_weights()
    weights = dict(model.named_parameters())
    if any(buffer.is_meta for buffer in model.buffers()) or not weights.keys() <= files.keys():
        return None
    for key, weight in weights.items():
        with safe_open(files[key], "pt") as file:
            if file.get_slice(key).get_shape() != list(weight.shape):
                return None
    if model.can_generate():
        model.generation_config = _generation_config(name) or model.generation_config
    _sources[model] = _ModelFiles(device, files)
    return model.eval()


def is_outline(model: Any) -> bool:
    """Return whether a model's weights are still in its files."""
    return model in _sources


def device_of(model: Any) -> torch.device:
    """Return the device of a model; of an outline, the device that its weights are meant for."""
    device: torch.device = _sources[model].device if is_outline(model) else next(model.parameters()).device
    return device


def read_rows(model: Any, name: str, begin: int, size: int) -> Tensor:
    """Return `size` rows of a weight, from row `begin` on; of an outline, read from its file."""
    if not is_outline(model):
        weight: Tensor = model.get_parameter(name)
        return weight[begin : begin + size]
    with safe_open(_sources[model].files[name], "pt") as file:
        rows: Tensor = file.get_slice(name)[begin : begin + size]
    return rows


def _files(name: str) -> dict[str, Path]:
    """Return the file of each tensor in a model's folder, or of its hub name, whose files are fetched."""
    single = cached_file(name, _WEIGHTS, _raise_exceptions_for_missing_entries=False)
    if single is not None:
        paths = [single]
    else:
        index = cached_file(name, _INDEX, _raise_exceptions_for_missing_entries=False)
        paths = [] if index is None else get_checkpoint_shard_files(name, index)[0]
    files: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, "pt") as file:
            files |= dict.fromkeys(file.keys(), Path(path))
    return files


def _generation_config(name: str) -> Any:
    try:
        return GenerationConfig.from_pretrained(name)
    except OSError:
        return None
