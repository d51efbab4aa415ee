"""Save and restore a learner. A checkpoint holds all that is needed to resume training with identical results.

RUN/checkpoints/step-000020/
    model/               as `export` writes it: `palaestra eval --model` can load it
    adapter/             instead, if an adapter is trained, as `save_adapter` writes it: the base is not copied
    training.safetensors optimizer states, float32 master weights, and the random state
    training/            instead, with several ranks: each rank's part of the same tensors, also in safetensors
    checkpoint.json      step, config, the sampler's state, fingerprint, versions; size and digest of every file

A checkpoint is written to a temporary folder, synced, and renamed, so one with its final name is complete. Disks fail,
and users edit files, so sizes and digests are compared before anything is read. No file is a pickle.

Several ranks write one checkpoint, and any number can resume from it: each reads its part of the tensors, by name.

Nothing else has state. The engine is reset by each update of its weights, and environments reset for each episode.
Not included: the KL reference, which never changes and is in RUN/start.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from palaestra.agents.adapters import adapted, read_adapter, save_adapter
from palaestra.agents.local_model import LocalModel
from palaestra.agents.model_folder import export
from palaestra.errors import TrainingHalted, UsageError
from palaestra.trainers.learn.learner import Learner, RunConfigT, to_learn
from palaestra.trainers.run.atomic_files import remove_folder, whole_folder
from palaestra.trainers.run.versions import digest_of, versions
from palaestra.trainers.scale.fsdp import (
    as_part_of,
    is_divided,
    load_parts,
    own_part,
    save_parts,
    shape_of,
    whole_model,
)
from palaestra.trainers.scale.fsdp import whole_adapter as gathered_adapter
from palaestra.trainers.scale.moment_levels import narrowed, widened
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.validation import plain

VERSION = 2
_ABOUT = "checkpoint.json"
_TENSORS, _PARTS = "training.safetensors", "training"
_MASTER = "master/float32"
_KEPT = ("optimizer_bits", "lora_r", "lora_alpha", "lora_target_modules")
"""Settings that determine the tensors of a checkpoint, besides the model's fingerprint."""
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that passed its integrity check."""

    path: Path
    step: int
    config: Mapping[str, Any]
    """Config of the run, as plain values."""
    state: Mapping[str, Any]
    """State of the sampler."""
    fingerprint: str
    """Digest of the names, shapes and types of the model's parameters (`fingerprint`)."""
    versions: Mapping[str, str]
    """Versions of Python and of the libraries that wrote it."""

    @property
    def model(self) -> Path:
        """Return the folder of the model."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """Return the folder of the adapter, which exists if an adapter is trained."""
        return self.path / "adapter"


def save(learner: Learner[RunConfigT], folder: Path) -> Path:
    """Write a checkpoint of a learner between two steps. Then remove all but the newest `keep_checkpoints`."""
    assert not learner.torn, "weights in the middle of an update are those of no step"
    ranks, path = learner.ranks, folder / f"step-{learner.step:06}"
    tensors = [own_part(weight) for weight in learner.masters.trained.values()]
    tensors += [] if learner.critic is None else learner.critic.tensors().values()
    if not all(ranks.gathered(all(bool(tensor.isfinite().all()) for tensor in tensors))):
        raise TrainingHalted(
            f"some weights are not finite after step {learner.step}, so no checkpoint is saved; "
            "a lower learning_rate or max_grad_norm may help"
        )
    adapter = gathered_adapter(learner.model)
    model = None if adapter else whole_model(learner.model, ranks)
    if not ranks.first:
        save_parts(_training_state(learner), ranks.broadcast(Path) / _PARTS, ranks)
        ranks.meet()
        return path
    with whole_folder(path) as unfinished:
        if adapted(learner.model):
            save_adapter(learner.model, learner.tokenizer, unfinished / "adapter", adapter)
        else:
            export(model, learner.tokenizer, unfinished / "model")
        if ranks.count > 1:
            save_parts(_training_state(learner), ranks.broadcast(lambda: unfinished) / _PARTS, ranks)
        else:
            save_file(_training_state(learner), unfinished / _TENSORS)
        config_file = next(unfinished.glob("*/*config.json"))
        for file in unfinished.glob("training*/*.safetensors" if ranks.count > 1 else _TENSORS):
            file.chmod(config_file.stat().st_mode & 0o777)
        content = {
            "palaestra": VERSION,
            "step": learner.step,
            "config": plain(learner.config),
            "state": dict(learner.state),
            "fingerprint": fingerprint(learner.model),
            "versions": versions(),
            "files": {
                str(file.relative_to(unfinished)): {"size": file.stat().st_size, "digest": digest_of(file)}
                for file in sorted(unfinished.rglob("*"))
                if file.is_file()
            },
        }
        text = json.dumps({"digest": _digest(content), **content}, indent=2)
        (unfinished / _ABOUT).write_text(text + "\n", encoding="utf-8")
    prune(folder, learner.config.save.keep_checkpoints)
    ranks.meet()
    return path


def prune(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints."""
    for older in _checkpoint_folders(folder)[count:]:
        remove_folder(older)


def last_step(folder: Path) -> int | None:
    """Return the step in the name of the newest checkpoint folder; None if there is no such folder."""
    return next((_step(path) for path in _checkpoint_folders(folder)), None)


def newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Return the newest intact checkpoint (None if there is none), and for each newer path what is wrong with it."""
    faults: dict[Path, str] = {}
    for path in _checkpoint_folders(folder):
        try:
            return _checked(path), faults
        except ValueError as error:
            faults[path] = str(error)
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            faults[path] = f"{_ABOUT} has another form than palaestra writes: {error}"
    return None, faults


def open_saved(checkpoint: Checkpoint, open_named: Callable[[str], LocalModel], base: str) -> LocalModel:
    """Open the model of a checkpoint. If only an adapter was saved, open the base and load the adapter into it."""
    if not checkpoint.adapter.is_dir():
        return open_named(str(checkpoint.model))
    local = open_named(base)
    read_adapter(local.model, checkpoint.adapter)
    return local


def restore(
    checkpoint: Checkpoint, local: LocalModel, config: RunConfigT, reference: Any = None
) -> Learner[RunConfigT]:
    """Return the learner as it was saved; `local` is its model, opened by `open_saved`. Raise `UsageError` if the model
    or the config does not match the checkpoint.
    """
    saved_scale, scale = checkpoint.config.get("scale", {}), plain(config.scale)
    if changed_names := [name for name in _KEPT if saved_scale.get(name, scale[name]) != scale[name]]:
        differences = ", ".join(f"{name} was {saved_scale[name]!r} and is {scale[name]!r}" for name in changed_names)
        raise UsageError(f"cannot resume from {checkpoint.path}: {differences}. Use the settings of the checkpoint")
    actual = fingerprint(local.model)
    if actual != checkpoint.fingerprint:
        precision = str(next(local.model.parameters()).dtype).removeprefix("torch.")
        raise UsageError(
            f"{checkpoint.path} was saved from a model with other parameters: fingerprint {checkpoint.fingerprint}, "
            f"precision {saved_scale.get('precision')}; as it is loaded now it has {actual}, {precision}. It was "
            f"written with {_libraries(checkpoint.versions)}, these are {_libraries(versions())}"
        )
    model = to_learn(local.model, here(), config)
    learner = Learner(local.agent, model, config, checkpoint.step, reference, state=checkpoint.state, ranks=here())
    tensors = _read(checkpoint, learner)
    torch.set_rng_state(tensors.pop("random/cpu"))
    on_gpu = tensors.pop("random/cuda", None)
    if on_gpu is not None and (device := next(model.parameters()).device).type == "cuda":
        torch.cuda.set_rng_state(on_gpu, device)
    if learner.critic is not None:
        critic_keys = [key for key in tensors if key.startswith("critic/")]
        learner.critic.load({key.removeprefix("critic/"): tensors.pop(key) for key in critic_keys})
    state_by_parameter: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        group, kind, name = key.split("/", 2)
        # bitsandbytes stores its step count as a Python number.
        value = tensor.item() if tensor.dtype == torch.int64 else tensor
        state_by_parameter.setdefault(name, {})[f"{group}/{kind}"] = value
    learner.masters.load({name: state_by_parameter[name].pop(_MASTER) for name in _masters(learner)})
    names = {weight: name for name, weight in learner.masters.stepped.items()}
    for optimizer in learner.optimizers:
        parameter_names = [names[weight] for group in optimizer.param_groups for weight in group["params"]]
        state = {
            place: narrowed(
                {key.removeprefix("optimizer/"): value for key, value in state_by_parameter[name].items()},
                learner.masters.trained[name],
            )
            for place, name in enumerate(parameter_names)
            if state_by_parameter.get(name)
        }
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return learner


def fingerprint(model: Any) -> str:
    """Return a digest that is equal for models whose parameters have the same names, shapes and types."""
    computed = model.config.dtype if is_divided(model) else None
    weights = model.named_parameters()
    return _digest([(name, list(shape_of(weight)), str(computed or weight.dtype)) for name, weight in weights])


def _training_state(learner: Learner[RunConfigT]) -> dict[str, torch.Tensor]:
    state = {"random/cpu": torch.get_rng_state()}
    if (device := next(learner.model.parameters()).device).type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    if learner.critic is not None:
        state |= {f"critic/{name}": tensor.contiguous() for name, tensor in learner.critic.tensors().items()}
    for name, master in _masters(learner).items():
        state[f"{_MASTER}/{name}"] = master.detach().contiguous()
    for name, weight in learner.masters.stepped.items():
        for optimizer in learner.optimizers:
            values = optimizer.state.get(weight, {})
            for kind, value in (widened(values) if learner.ranks.count > 1 else values).items():
                tensor = value if torch.is_tensor(value) else torch.tensor(value)
                tensor = as_part_of(learner.masters.trained[name], tensor.contiguous())
                # bitsandbytes' weights share one table of levels; in a file each needs a copy.
                state[f"optimizer/{kind}/{name}"] = tensor.clone() if "qmap" in kind else tensor
    return state


def _masters(learner: Learner[RunConfigT]) -> dict[str, torch.nn.Parameter]:
    """Return the float32 master weights of a model that is saved in another dtype."""
    rounded = is_divided(learner.model) and learner.model.config.dtype != torch.float32
    return learner.masters.trained if rounded else learner.masters.copies


def _read(checkpoint: Checkpoint, learner: Learner[RunConfigT]) -> dict[str, torch.Tensor]:
    """Return copies of the tensors of a checkpoint; with several ranks, only the part of this rank."""
    parts, whole = checkpoint.path / _PARTS, checkpoint.path / _TENSORS
    if learner.ranks.count == 1 and not parts.is_dir():
        # Copy: loaded tensors are memory-mapped, and the file is removed some steps later.
        return {name: tensor.clone() for name, tensor in load_file(whole).items()}
    return load_parts(parts if parts.is_dir() else checkpoint.path, learner.masters.trained, learner.ranks)


def _checked(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder. Raise `ValueError` if a file differs from what was written."""
    try:
        content = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{_ABOUT} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{_ABOUT} is not valid JSON: it was cut off or changed") from None
    if not isinstance(content, dict) or content.get("palaestra") != VERSION:
        raise ValueError(f"{_ABOUT} is not of version {VERSION}, which this palaestra reads")
    if content.pop("digest", None) != _digest(content):
        raise ValueError(f"{_ABOUT} was changed after it was written")
    for name, expected in content["files"].items():
        file = path / name
        if not file.is_file():
            raise ValueError(f"{name} is missing")
        if file.stat().st_size != expected["size"]:
            raise ValueError(f"{name} has {file.stat().st_size} bytes, {expected['size']} were written")
        if digest_of(file) != expected["digest"]:
            raise ValueError(f"{name} was changed after it was written")
    if f"step-{content['step']:06}" != path.name:
        raise ValueError(f"it holds step {content['step']}: the folder was renamed")
    return Checkpoint(path, **{name: content[name] for name in ("step", "config", "state", "fingerprint", "versions")})


def _checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders that are named as checkpoints, newest first."""
    folders = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _libraries(version_by_name: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version_by_name.get(name, '?')}" for name in ("torch", "transformers"))
