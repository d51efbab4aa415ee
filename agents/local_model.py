"""A model in this process that can play and be trained: loaded from disk or from a hub, or newly made."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import has_file
from transformers.utils.peft_utils import find_adapter_config_file

from palaestra.agents.adapters import base_name, is_adapter, merged
from palaestra.agents.agent import Agent
from palaestra.agents.chat import Chat
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.known_models import KNOWN, located
from palaestra.agents.model_folder import misplaced
from palaestra.agents.outline import outlined
from palaestra.agents.tool_prompt import set_system
from palaestra.errors import UsageError
from palaestra.protocols import Engine

# Progress bars of loading and saving would break a live display, for work that takes seconds.
transformers_logging.disable_progress_bar()


EngineMaker = Callable[..., Engine]
"""Makes the engine of a model that is trained here: `(model, stops, slots=, seed=)`. The built-in engine samples from
that very model; another may hold its own copy of the weights and take new ones by `update_weights`."""


Dtype = Literal["float32", "bfloat16"]
"""The dtype of the weights and of the computation."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model, its tokenizer, and an agent that answers with its weights."""

    model: Any
    tokenizer: Any
    agent: Agent


def serve(model: Any, tokenizer: Any, *, slots: int, seed: int = 0, engine: EngineMaker = TorchEngine) -> LocalModel:
    """Return a model with a new engine and chat. The model is put in evaluation mode, without dropout."""
    model.eval()
    chat = Chat(tokenizer)
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    # The chat must know all stops: an unknown one would stay in the text and spoil the answer.
    chat.stops |= set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    return LocalModel(model, tokenizer, Agent(engine(model, chat.stops, slots=slots, seed=seed), chat))


def open_tokenizer(name: str, chat_template: str | None = None, system: str = "") -> Any:
    """Return the tokenizer of a model's folder, hub name or known name; it must have a chat template.

    The file `chat_template` replaces its template. `system` is put before the system text of every dialogue.
    """
    name = located(name)
    if wrong := misplaced(name):
        raise UsageError("; ".join(wrong))
    if is_adapter(Path(name)) and not (Path(name) / "tokenizer_config.json").is_file():
        return open_tokenizer(base_name(Path(name)), chat_template, system)
    if not Path(name).exists():
        _ask_hub(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no model could be read from {name!r} ({_first_line(error)}); pass a model folder (with config.json, "
            "safetensors and tokenizer files), a hub name, or 'tiny'"
        ) from error
    if chat_template is not None:
        tokenizer.chat_template = _template_of(chat_template, tokenizer)
    if not tokenizer.chat_template:
        raise UsageError(
            f"the tokenizer in {name!r} has no chat template; pass an instruct model, or put a chat_template.jinja "
            "beside its tokenizer files"
        )
    if system:
        set_system(tokenizer, system)
    return tokenizer


def _template_of(name: str, tokenizer: Any) -> str:
    """Return the chat template in a file. Raise a UsageError if it cannot be read, or does not show a question."""
    try:
        template = Path(name).read_text("utf-8")
        question = [{"role": "user", "content": "?"}]
        prompt = tokenizer.apply_chat_template(question, chat_template=template, tokenize=False)
    except Exception as error:  # A template may raise anything.
        raise UsageError(f"the chat template {name} cannot be used: {_first_line(error)}") from error
    if "?" not in prompt:
        raise UsageError(f"the chat template {name} does not show a user's message; expected a template in Jinja")
    return template


def commit_of(name: str) -> str:
    """Return the commit of the hub model's files that `load` reads, or a known model's digest; "" if none is stated."""
    if (known_model := KNOWN.get(name)) is not None:
        return known_model.sha256
    return str(getattr(AutoConfig.from_pretrained(name, trust_remote_code=False), "_commit_hash", None) or "")


def load(
    name: str,
    *,
    slots: int,
    seed: int = 0,
    device: str = "auto",
    dtype: Dtype = "float32",
    engine: EngineMaker = TorchEngine,
    chat_template: str | None = None,
    system: str = "",
    outline: bool = False,
) -> LocalModel:
    """Load a causal language model and its chat template. For an adapter's folder, load the base and merge the adapter.
    With `outline`, leave the weights in their files, if each can be read from there by itself (`outline.read_rows`).

    `chat_template` and `system` change the prompts, as `open_tokenizer` says.
    Training in bfloat16 needs float32 copies of the weights (`trainers.scale`): small changes would be rounded away.
    """
    where = find_device(device)
    tokenizer = open_tokenizer(name, chat_template, system)
    if outline and (model := _outline(name, dtype, where)) is not None:
        return serve(model, tokenizer, slots=slots, seed=seed, engine=engine)
    model = cast_weights(_read(name, dtype).to(where), dtype)
    # Loaded weights lie in a memory-mapped file, which may be removed, and at addresses where sums may round
    # differently than in memory of torch: a resumed run would differ from the uninterrupted one in the last bits.
    for weight in model.parameters():
        weight.data = weight.data.clone()
    return serve(model, tokenizer, slots=slots, seed=seed, engine=engine)


def cast_weights(model: Any, dtype: Dtype) -> Any:
    """Convert a model's weights to a dtype, in place. Buffers, such as tables of rotary angles, keep their dtype."""
    for weight in model.parameters():
        weight.data = weight.data.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    return model


def _read(name: str, dtype: Dtype) -> Any:
    name = located(name)
    folder = Path(name)
    if is_adapter(folder):
        # Base and adapter are summed in float32, whatever the final dtype is.
        whole = merged(_read(base_name(folder), "float32"), folder)
        whole.name_or_path = name
        return whole
    with _reading(name):
        return AutoModelForCausalLM.from_pretrained(
            name, dtype=getattr(torch, dtype), trust_remote_code=False, use_safetensors=True
        )


def _outline(name: str, dtype: Dtype, device: torch.device) -> Any:
    """Return a model whose weights stay in their files; None if it must be read whole."""
    name = located(name)
    if is_adapter(Path(name)):
        return None
    with _reading(name):
        return outlined(name, getattr(torch, dtype), device)


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Read the files of a model during a `with` block. Raise UsageError if they cannot be read, or name code."""
    try:
        if find_adapter_config_file(name) is not None:  # transformers would read it, whatever its settings name.
            raise UsageError(f"{name!r} is an adapter on the hub; download it (hf download) and pass its folder")
        _refuse_kernels(name)
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise UsageError(f"the weights in {name!r} could not be loaded: {_first_line(error)}") from error


def _refuse_kernels(name: str) -> None:
    """Raise UsageError if a model's config names code on the hub, because transformers would download and run it."""
    config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        for hub_name in (
            getattr(part, "_attn_implementation", None),
            getattr(part, "_experts_implementation", None),
        ):
            if "/" in str(hub_name):
                raise UsageError(
                    f"the config of {name!r} names code on the hub, {hub_name!r}, which is not run; take that out of "
                    "its config.json"
                )


def find_device(name: str) -> torch.device:
    """Return the torch device of this name; `auto` is a GPU if there is one, otherwise the CPU."""
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
    """Raise UsageError if a name is neither cached nor on the hub. Without this check, loading retries for a minute."""
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
