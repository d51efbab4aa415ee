"""`palaestra convert FILE.gguf FOLDER`: make a model folder of a GGUF file, for every command that takes --model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class ConvertOptions:
    """Convert a GGUF file to a folder with config, safetensors and tokenizer. Quantized weights become full ones."""

    file: Annotated[Path, tyro.conf.Positional]
    """GGUF file."""
    folder: Annotated[Path, tyro.conf.Positional]
    """New folder of the model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights that are written."""


def run(arguments: Sequence[str]) -> int:
    """Convert the file and print the folder."""
    options = tyro.cli(ConvertOptions, args=list(arguments), prog="palaestra convert")
    from palaestra.agents.gguf_conversion import convert

    convert(options.file, options.folder, options.dtype)
    print(f"model: {options.folder}; check it with palaestra doctor {options.folder}")
    return 0
