"""A model in this process that plays and can be trained: from disk, from a hub, or just made."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import has_file

from palaestra.agents.adapters import adapted, base_name, effective_weights, is_adapter, merged
from palaestra.agents.agent import Agent
from palaestra.agents.chat import Chat
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.errors import UsageError
from palaestra.protocols import Engine

# Bars for loading and saving would run through a live display and say nothing about seconds of work.
transformers_logging.disable_progress_bar()


EngineMaker = Callable[..., Engine]
"""`(model, stops, slots=, seed=)`: what answers for a model that is trained here. The built-in engine samples from that
very model; another may hold weights of its own and take them by `update_weights`."""


Dtype = Literal["float32", "bfloat16"]
"""Of weights, and of what is computed with them."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model, its tokenizer, and an agent that answers with its weights."""

    model: Any
    tokenizer: Any
    agent: Agent


def serve(model: Any, tokenizer: Any, *, slots: int, seed: int = 0, engine: EngineMaker = TorchEngine) -> LocalModel:
    """Put an engine and a chat around a model. Nothing in it is dropped at random from here on."""
    model.eval()
    chat = Chat(tokenizer)
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    # The chat must know them all: a stop that it does not know would stay in the text, and spoil the answer.
    chat.stops |= set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return LocalModel(model, tokenizer, Agent(engine(model, chat.stops, slots=slots, seed=seed), chat))


def open_tokenizer(name: str) -> Any:
    """The tokenizer of a model's folder or hub name; it must have a chat template."""
    if wrong := misplaced(name):
        raise UsageError("; ".join(wrong))
    if is_adapter(Path(name)) and not (Path(name) / "tokenizer_config.json").is_file():
        return open_tokenizer(base_name(Path(name)))
    if not Path(name).exists():
        _ask_hub(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no model could be read from {name!r} ({_first_line(error)}); pass a model folder (with config.json, "
            "safetensors and tokenizer files), a hub name, or 'tiny'"
        ) from error
    if not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer in {name!r} has no chat template; pass an instruct model, or put a chat_template.jinja "
            "beside its tokenizer files"
        )
    return tokenizer


def commit_of(name: str) -> str:
    """The commit of a hub's model as it is read here; "" where the hub's files do not say."""
    return str(getattr(AutoConfig.from_pretrained(name, trust_remote_code=False), "_commit_hash", None) or "")


def misplaced(name: str) -> tuple[str, str] | None:
    """What is wrong with a model's name, and the remedy; None for a model's folder, and for what may be a hub name."""
    path = Path(name)
    if (path / "model" / "config.json").is_file():
        return f"{name!r} is a run; its model is in {str(path / 'model')!r}", "pass that folder"
    if path.is_dir() and not (path / "config.json").is_file() and not is_adapter(path):
        return f"{name!r} holds no config.json", "pass a model folder, as transformers or a run writes it"
    if path.is_file():
        return f"{name!r} is a file", "pass the folder that holds it"
    if not path.exists() and (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1):
        return f"there is no folder {name!r}", "pass a model folder, a hub name, or 'tiny'"
    return None


def load(
    name: str,
    *,
    slots: int,
    seed: int = 0,
    device: str = "auto",
    dtype: Dtype = "float32",
    engine: EngineMaker = TorchEngine,
) -> LocalModel:
    """Load a causal language model with its chat template; of an adapter's folder, its base with the adapter merged.

    In bfloat16 steps of a small learning rate vanish: whoever trains needs float32 copies (`trainers.scale`).
    """
    where = find_device(device)
    tokenizer = open_tokenizer(name)
    model = cast_weights(_read(name, dtype).to(where), dtype)
    # What was loaded lies in the mapped file, which may be removed under it, and at addresses where sums may round
    # otherwise than in memory of torch's own: a resumed run would leave the uninterrupted one by its last bits.
    for weight in model.parameters():
        weight.data = weight.data.clone()
    return serve(model, tokenizer, slots=slots, seed=seed, engine=engine)


def cast_weights(model: Any, dtype: Dtype) -> Any:
    """Have a model's weights in a type, in place. Tables that a model computes for itself, of angles, stay as exact."""
    for weight in model.parameters():
        weight.data = weight.data.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    return model


def _read(name: str, dtype: Dtype) -> Any:
    folder = Path(name)
    if is_adapter(folder):
        # Summed in float32, whatever it is to be.
        whole = merged(_read(base_name(folder), "float32"), folder)
        whole.name_or_path = name
        return whole
    try:
        return AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype), trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"the weights in {name!r} could not be loaded: {_first_line(error)}") from error


def export(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that `load`, transformers and vLLM read: safetensors, config, tokenizer, template.

    A model with an adapter is written whole, under the names that its base has.
    """
    whole = {name: weight.detach().cpu() for name, weight in effective_weights(model)} if adapted(model) else None
    model.save_pretrained(folder, state_dict=whole)
    tokenizer.save_pretrained(folder)
    # Weights arrive readable by their owner alone; they shall be as readable as the files beside them.
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)


def find_device(name: str) -> torch.device:
    """`auto` is a GPU where there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise UsageError(f"there is no device {name!r}; pass 'cpu', 'cuda', 'cuda:1' or 'auto'") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"torch {torch.__version__} sees {torch.cuda.device_count()} GPUs, so there is no {name!r}; "
            "pass 'cpu' or 'auto', or install a torch built for your GPU"
        )
    return device


def _ask_hub(name: str) -> None:
    """Refuse at once a name that is not in the cache and that the hub does not give; loading would try for a minute."""
    try:
        reason = "" if has_file(name, "tokenizer_config.json") else "it cannot be reached, or gives no tokenizer"
    except Exception as error:  # An unknown name, a gated model, or whatever its HTTP library raises.
        reason = _first_line(error)
    if reason:
        raise UsageError(
            f"there is no folder {name!r}, and as a name on the hub it cannot be had ({reason}); pass a model folder, "
            "a hub name, or 'tiny'"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
