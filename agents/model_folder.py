"""The folder of a model: write one, and name what is wrong with a folder that holds none.

Left out: reading the model (`local_model`), and adapters alone (`adapters`).
"""

import shlex
import shutil
from pathlib import Path
from typing import Any

from palaestra.agents.adapters import adapted, effective_weights, is_adapter


def misplaced(name: str) -> tuple[str, str] | None:
    """Return the error in a model's name and its remedy; None if the name is a model folder or may be a hub name."""
    path = Path(name)
    if (path / "model" / "config.json").is_file():
        return f"{name!r} is a run; its model is in {str(path / 'model')!r}", "pass that folder"
    files = [path] if path.is_file() and path.suffix.lower() == ".gguf" else sorted(path.glob("*.gguf"))
    if files and not (path / "config.json").is_file():
        command = shlex.join(["palaestra", "convert", str(files[0]), "FOLDER"])
        return f"{name!r} is a GGUF model", f"convert it to a folder with `{command}`, and pass that"
    if path.is_dir() and not (path / "config.json").is_file() and not is_adapter(path):
        return f"{name!r} holds no config.json", "pass a model folder, as transformers or a run writes it"
    if path.is_file():
        return f"{name!r} is a file", "pass the folder that holds it"
    if not path.exists() and (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1):
        return f"there is no folder {name!r}", "pass a model folder, a hub name, or 'tiny'"
    return None


def export(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a folder that `load`, transformers and vLLM read: safetensors, config, tokenizer, template.

    An adapter is merged into the base model's weights, which keep the base's names.
    """
    whole = {name: weight.detach().cpu() for name, weight in effective_weights(model)} if adapted(model) else None
    dtype = model.config.dtype
    model.save_pretrained(folder, state_dict=whole)
    model.config.dtype = dtype  # It was replaced by its name, as the file has it.
    tokenizer.save_pretrained(folder)
    # Weight files are written with access for their owner alone; give them the mode of the files beside them.
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)
