"""LoRA through peft: a small adapter is trained, and the base model's weights never change.

The adapter's layers are put into the model itself, so engine and trainer run the model as usual. The adapter is never
merged into the model in training: to take it out again would leave rounding errors, in bfloat16 in a fifth of the
weights. An engine with its own copy, or an export, gets the whole weights: base plus adapter, summed in float32, under
the base's names. With the adapter switched off the model equals the base exactly; this is the reference of the KL.

An adapter's folder holds the files that peft reads, and `base.json` with the base's name and fingerprint. Left out:
continued training of a loaded adapter (it is merged into the base when it is loaded), and adapters of embeddings.
"""

import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from palaestra.errors import MissingExtra, UsageError

_NAME = "default"
_SETTINGS = "adapter_config.json"
_TENSORS = "adapter_model.safetensors"
_BASE = "base.json"
_COMPUTED = (
    *("r", "lora_alpha", "lora_dropout", "lora_bias", "use_rslora", "use_dora", "fan_in_fan_out", "bias", "task_type"),
    *("target_modules", "exclude_modules", "target_parameters", "modules_to_save", "layers_to_transform"),
    *("layers_pattern", "rank_pattern", "alpha_pattern", "trainable_token_indices", "layer_replication"),
)
"""Settings of an adapter that decide what it computes."""
_IGNORED = (
    *("base_model_name_or_path", "peft_type", "peft_version", "revision", "inference_mode", "auto_mapping"),
    *("init_lora_weights", "runtime_config"),
)
_PREFIX = "base_model.model."
"""Prefix of the weight names in peft's files."""
_SAMPLE = 16
"""Number of values of each weight that go into a fingerprint."""


def add_adapter(model: Any, rank: int, alpha: float, targets: Sequence[str], *, seed: int = 0) -> None:
    """Put a new adapter into a model. From then on only the adapter is trained.

    The model's outputs do not change until the first training step. The adapter's weights have the dtype of the base.
    """
    name = str(model.name_or_path)
    # Computed before peft renames the weights: the fingerprint is that of the base alone.
    base = {"name": str(Path(name).resolve()) if Path(name).is_dir() else name, "fingerprint": base_fingerprint(model)}
    inject(model, rank, alpha, targets, seed=seed)
    model.palaestra_base = base


def inject(model: Any, rank: int, alpha: float, targets: Sequence[str], *, seed: int = 0) -> None:
    """Put an adapter's layers into a model. If the model is on the meta device, the layers have no storage either."""
    peft, module_names, name = _peft(), list(targets), str(model.name_or_path)
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules=module_names[0] if module_names == ["all-linear"] else module_names,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(Path(name).resolve()) if Path(name).is_dir() else name,
    )
    devices = [weight.device for weight in model.parameters() if weight.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(settings, model, adapter_name=_NAME)
        except ValueError as error:
            raise UsageError(
                f"no adapter fits into this model (lora_target_modules is {module_names}): {error}"
            ) from error


def adapted(model: Any) -> bool:
    """Return whether an adapter was added to the model."""
    return hasattr(model, "palaestra_base")


def base_of(model: Any) -> dict[str, str]:
    """Return the name and the fingerprint of the base that the adapter was added to."""
    base: dict[str, str] = model.palaestra_base
    return base


@contextmanager
def adapter_off(model: Any) -> Iterator[Any]:
    """Switch the adapter off during a `with` block; yield the model."""
    layers = list(_layers(model).values())
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield model
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def effective_weights(
    model: Any, whole: Callable[[Tensor], Tensor] = lambda weight: weight
) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight of the base by name, with the adapter (if there is one) added, in the dtype of the base.

    `whole` returns the tensor to read in place of a weight, if the model holds only a part of it.
    """
    layers = _layers(model)
    for name, weight in model.named_parameters():
        above, _, last = name.rpartition(".base_layer.")
        if last == "weight" and above in layers:
            layer = layers[above]
            outer, inner = (whole(side[_NAME].weight).float() for side in (layer.lora_B, layer.lora_A))
            delta, base = outer @ inner * layer.scaling[_NAME], whole(weight)
            yield f"{above}.weight", (base.float() + (delta.T if layer.fan_in_fan_out else delta)).to(base.dtype)
        elif above in layers:
            yield f"{above}.{last}", whole(weight)
        elif not _in_adapter(name):
            yield name, whole(weight)


def save_adapter(model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write an adapter's folder, which peft and `local_model.load` can read. `weights` are those of the adapter under
    the names of the files, if the model holds only a part of them (`adapter_weights`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[_NAME].save_pretrained(folder)
    settings = folder / _SETTINGS
    content = json.loads(settings.read_text(encoding="utf-8"))
    content["target_modules"] = sorted(content["target_modules"])  # It comes from a set, so its order varies.
    settings.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = adapter_weights(model) if weights is None else weights
    tensors = {key: weight.detach().contiguous() for key, weight in weights.items()}
    save_file(tensors, folder / _TENSORS, {"format": "pt"})
    shutil.copymode(settings, folder / _TENSORS)
    (folder / _BASE).write_text(json.dumps(base_of(model), indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def read_adapter(model: Any, folder: Path) -> None:
    """Copy the adapter weights in a folder into the adapter that was added to a model."""
    check_base(model, folder)
    weights, tensors = adapter_weights(model), load_file(folder / _TENSORS)
    if strange := [key for key in {**weights, **tensors} if key not in weights or key not in tensors]:
        raise UsageError(f"{folder} holds an adapter of other layers: {strange[0]} is in one of the two alone")
    for key, weight in weights.items():
        weight.copy_(tensors[key])


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / _SETTINGS).is_file()


def base_name(folder: Path) -> str:
    """Return the name of an adapter's base: a hub name, or a folder, which may hold an adapter of another base."""
    name, visited = _base_name(folder), {folder.resolve()}
    while is_adapter(Path(name)):
        if Path(name).resolve() in visited:
            raise UsageError(f"the adapter in {folder} is, over {name!r}, its own base; name a model there")
        visited.add(Path(name).resolve())
        name = _base_name(Path(name))
    return _base_name(folder)


def _base_name(folder: Path) -> str:
    try:
        settings = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        kind, name = settings.get("peft_type"), settings.get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{folder / _SETTINGS} cannot be read ({error}); expected what peft writes") from error
    if kind != "LORA" or not name:
        raise UsageError(
            f"{folder / _SETTINGS} is of the type {kind!r} for the base {name!r}; expected LORA and the name of a base"
        )
    return str(name)


def _settings(folder: Path) -> Any:
    """Return the settings that decide what an adapter computes. Raise UsageError for an unknown setting, because some
    settings of peft name modules to import and files to load.
    """
    peft, written = _peft(), json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
    default = peft.LoraConfig()
    strange = [
        name
        for name, value in written.items()
        if name not in _COMPUTED and name not in _IGNORED and value and value != getattr(default, name, None)
    ]
    if strange:
        raise UsageError(
            f"{folder / _SETTINGS} sets {strange[0]}, which is not read here; merge the adapter into its base by peft"
        )
    settings = peft.LoraConfig(**{name: value for name, value in written.items() if name in _COMPUTED})
    settings.inference_mode = True
    return settings


def merged(model: Any, folder: Path) -> Any:
    """Return the model after the adapter in a folder was merged into its weights permanently."""
    check_base(model, folder)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)  # peft 0.21 raises it.
            with_adapter = _peft().PeftModel.from_pretrained(model, str(folder), config=_settings(folder))
    except UsageError:
        raise
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"the adapter in {folder} could not be loaded: {str(error).splitlines()[0]}") from error
    return with_adapter.merge_and_unload()


def check_base(model: Any, folder: Path) -> None:
    """Raise UsageError if the adapter in a folder was made for another model. Compare the shapes of the weights and, if
    the folder holds it, the fingerprint of the base.
    """
    expected = f"put it on the base that its {_SETTINGS} names"
    modules = dict(model.named_modules())
    try:
        with safe_open(folder / _TENSORS, "pt") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{folder / _TENSORS} cannot be read: {error}") from error
    for key, shape in shapes.items():
        name, _, side = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if side not in ("lora_A", "lora_B"):
            continue
        layer = modules.get(name)
        layer = getattr(layer, "base_layer", layer)
        wide = None if layer is None else layer.in_features if side == "lora_A" else layer.out_features
        if (width := shape[1 if side == "lora_A" else 0]) != wide:
            has = "does not exist" if wide is None else f"has {wide}"
            raise UsageError(
                f"the adapter in {folder} is of another base: for {name} it has {width} "
                f"{'inputs' if side == 'lora_A' else 'outputs'}, and in this {type(model).__name__} that layer {has}; "
                f"{expected}"
            )
    if (folder / _BASE).is_file():
        written = json.loads((folder / _BASE).read_text(encoding="utf-8"))
        have = base_of(model)["fingerprint"] if adapted(model) else base_fingerprint(model)
        if written["fingerprint"] != have:
            raise UsageError(
                f"the adapter in {folder} is of another base: that of {written['name']} had the fingerprint "
                f"{written['fingerprint']}, this one of the same shape has {have}; {expected}"
            )


@torch.no_grad()
def base_fingerprint(model: Any) -> str:
    """Return a digest of the names, shapes and first numbers of all weights, independent of their dtype."""
    digest = blake2b(digest_size=12)
    for name, weight in model.named_parameters():
        begins = weight.flatten()[:_SAMPLE].bfloat16().float().cpu().numpy()
        digest.update(f"{name} {list(weight.shape)} ".encode() + begins.tobytes())
    return digest.hexdigest()


def _layers(model: Any) -> dict[str, Any]:
    """Return the layers that hold adapter weights, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def _in_adapter(name: str) -> bool:
    return ".lora_" in name


def adapter_weights(model: Any) -> dict[str, Tensor]:
    """Return the adapter's weights under the names that peft gives them in files."""
    return {
        _PREFIX + name.replace(f".{_NAME}.", "."): weight
        for name, weight in model.named_parameters()
        if _in_adapter(name)
    }


def _peft() -> Any:
    # peft imports bitsandbytes where it is installed; that then reports 4-bit kernels, which are never called here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "lora", "an adapter") from error
    return peft
