"""Convert a GGUF file to a model folder that `local_model.load`, transformers and vLLM read.

Transformers reads GGUF files, but refuses to save what it read. So a new model of the same config takes the weights
that were read, and is saved with the tokenizer and its chat template. Left out: writing GGUF, and files in several
parts.
"""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from palaestra.agents.model_folder import export
from palaestra.errors import UsageError


def require_gguf() -> None:
    """Raise a UsageError if the package that reads GGUF files is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise UsageError("the package gguf, which reads GGUF files, is not installed: pip install 'palaestra[gguf]'")


def convert(file: Path, folder: Path, dtype: Literal["float32", "bfloat16"] = "float32") -> None:
    """Write the model of a GGUF file as a new folder, which appears when it is complete.

    Raise a UsageError if the file cannot be read, or if the folder exists and is not empty.
    """
    require_gguf()
    if not file.is_file():
        raise UsageError(f"there is no file {str(file)!r}; pass a GGUF file")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} exists already; pass a new folder")
    model, tokenizer = _read(file)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as parent:
            incomplete = Path(parent) / "model"
            export(model.to(getattr(torch, dtype)), tokenizer, incomplete)
            incomplete.rename(folder)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{str(folder)!r} could not be written: {error}") from error


def _read(file: Path) -> tuple[Any, Any]:
    """Return the model of a GGUF file in float32, in a form that can be saved, and its tokenizer."""
    place: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "trust_remote_code": False,
    }
    try:
        pair: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32, output_loading_info=True)
        read, loading = pair
        tokenizer = AutoTokenizer.from_pretrained(**place)
    except Exception as error:  # A damaged file ends in errors of every kind, and so does an unknown architecture.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{str(file)!r} could not be read as GGUF: {reason}") from error
    if incomplete := sorted(map(str, {*loading["missing_keys"], *loading["mismatched_keys"]})):
        raise UsageError(f"{str(file)!r} lacks weights of its architecture, such as {incomplete[0]}")
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):  # The new model needs no memory of its own: it takes the tensors that were read.
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig.from_model_config(config)
    return model, tokenizer
