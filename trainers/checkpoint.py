"""A learner on disk: what must be kept so that training goes on bit by bit as if nothing had happened.

RUN/checkpoints/step-000020/
    model/               as `export` writes it: `palaestra eval --model` takes it as it is
    adapter/             in its place where an adapter learns, as `save_adapter` writes it: the base is not kept again
    training.safetensors the optimizers' memory, the float32 masters of other weights, and the random state
    training/            in its place where several ranks learn: each one's part of the same tensors, in safetensors too
    checkpoint.json      step, config, the sampler's state, the model's fingerprint, versions; size and digest of every
                         file

A checkpoint is written beside its place, brought to disk, and renamed; so one that has its name is whole. Disks lie and
people edit: sizes and digests are compared before anything is read. No pickle: safetensors and JSON alone.

Several ranks write one checkpoint, and any number of them goes on from it, one too: tensors are read by their names,
each rank its part, whoever wrote them.

Nothing else has state. The engine is as new after each update of its weights, and environments begin each episode anew.
Left out: the KL reference, which never changes and lies in RUN/start.
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
from palaestra.agents.local_model import LocalModel, export
from palaestra.errors import TrainingHalted, UsageError
from palaestra.trainers.checked import plain
from palaestra.trainers.durable import remove_folder, whole_folder
from palaestra.trainers.learner import Config, Learner
from palaestra.trainers.opening import to_learn
from palaestra.trainers.provenance import digest_of, versions
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.scale.shards import is_divided, load_parts, own_part, save_parts, whole_model

VERSION = 2
_ABOUT = "checkpoint.json"
_TENSORS, _PARTS = "training.safetensors", "training"
_MASTER = "master/float32"
_KEPT = ("optimizer_bits", "lora_r", "lora_alpha", "lora_target_modules")
"""Settings on which the tensors of a checkpoint depend, beside those that its model's fingerprint knows."""
_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One that was found whole."""

    path: Path
    step: int
    config: Mapping[str, Any]
    """Of the run that it belongs to, as plain values."""
    state: Mapping[str, Any]
    """Where the sampler stood."""
    fingerprint: str
    """Of its model."""
    versions: Mapping[str, str]
    """What it was made with."""

    @property
    def model(self) -> Path:
        """The folder of its model."""
        return self.path / "model"

    @property
    def adapter(self) -> Path:
        """The folder of its adapter, where one learns."""
        return self.path / "adapter"


def save(learner: Learner[Config], folder: Path) -> Path:
    """Write a checkpoint of a learner that stands between two steps; then remove those that are too many."""
    assert not learner.torn, "weights in the middle of an update are those of no step"
    ranks, path = learner.ranks, folder / f"step-{learner.step:06}"
    finite = all(bool(own_part(weight).isfinite().all()) for weight in learner.masters.own.values())
    if not all(ranks.gathered(finite)):
        raise TrainingHalted(
            f"some weights are no numbers after step {learner.step}: no checkpoint of them is kept; "
            "a lower learning_rate or max_grad_norm may help"
        )
    model = whole_model(learner.model, ranks)
    if not ranks.first:
        save_parts(_training_state(learner), ranks.told(Path) / _PARTS, ranks)
        ranks.meet()
        return path
    with whole_folder(path) as unfinished:
        if adapted(learner.model):
            save_adapter(learner.model, learner.tokenizer, unfinished / "adapter")
        else:
            export(model, learner.tokenizer, unfinished / "model")
        if ranks.count > 1:
            save_parts(_training_state(learner), ranks.told(lambda: unfinished) / _PARTS, ranks)
        else:
            save_file(_training_state(learner), unfinished / _TENSORS)
        beside = next(unfinished.glob("*/*config.json"))
        for file in unfinished.glob("training*/*.safetensors" if ranks.count > 1 else _TENSORS):
            file.chmod(beside.stat().st_mode & 0o777)
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
    for older in _found(folder)[learner.config.save.keep_checkpoints :]:
        remove_folder(older)
    ranks.meet()
    return path


def last_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, by its name."""
    return next((_step(path) for path in _found(folder)), None)


def newest(folder: Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that is whole, and what is wrong with each newer one."""
    faults: dict[Path, str] = {}
    for path in _found(folder):
        try:
            return _checked(path), faults
        except ValueError as error:
            faults[path] = str(error)
    return None, faults


def open_saved(found: Checkpoint, open_named: Callable[[str], LocalModel], base: str) -> LocalModel:
    """The model of a checkpoint, opened by its name; where only an adapter was kept, the base with that in it."""
    if not found.adapter.is_dir():
        return open_named(str(found.model))
    local = open_named(base)
    read_adapter(local.model, found.adapter)
    return local


def restore(found: Checkpoint, local: LocalModel, config: Config, reference: Any = None) -> Learner[Config]:
    """The learner as it was saved, around its model (`open_saved`)."""
    then, now = found.config.get("scale", {}), plain(config.scale)
    if wrong := [name for name in _KEPT if then.get(name, now[name]) != now[name]]:
        listed = ", ".join(f"{name} was {then[name]!r} and is {now[name]!r}" for name in wrong)
        raise UsageError(f"{found.path} cannot be gone on with: {listed}; ask for what it was made with")
    have = fingerprint(local.model)
    if have != found.fingerprint:
        precision = str(next(local.model.parameters()).dtype).removeprefix("torch.")
        raise UsageError(
            f"{found.path} was made of a model with other parameters: fingerprint {found.fingerprint}, precision "
            f"{then.get('precision')}; as it is loaded now it has {have}, {precision}. It was written with "
            f"{_libraries(found.versions)}, these are {_libraries(versions())}"
        )
    model = to_learn(local)
    learner = Learner(local.agent, model, config, found.step, reference, state=found.state, ranks=here())
    tensors = _read(found, learner)
    torch.set_rng_state(tensors.pop("random/cpu"))
    on_gpu = tensors.pop("random/cuda", None)
    device = next(local.model.parameters()).device
    if on_gpu is not None and device.type == "cuda":
        torch.cuda.set_rng_state(on_gpu, device)
    if learner.critic is not None:
        own = [key for key in tensors if key.startswith("critic/")]
        learner.critic.load({key.removeprefix("critic/"): tensors.pop(key) for key in own})
    memory: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        group, kind, name = key.split("/", 2)
        # bitsandbytes counts its steps by a Python number.
        memory.setdefault(name, {})[f"{group}/{kind}"] = tensor.item() if tensor.dtype == torch.int64 else tensor
    learner.masters.load({name: memory[name].pop(_MASTER) for name in _masters(learner)})
    names = {weight: name for name, weight in learner.masters.stepped.items()}
    for optimizer in learner.optimizers:
        held = [names[weight] for group in optimizer.param_groups for weight in group["params"]]
        state = {
            place: {key.removeprefix("optimizer/"): value for key, value in memory[name].items()}
            for place, name in enumerate(held)
            if memory.get(name)
        }
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return learner


def fingerprint(model: Any) -> str:
    """Equal for models whose parameters have the same names, shapes and types."""
    computed = model.config.dtype if is_divided(model) else None
    shapes = [(name, list(weight.shape), str(computed or weight.dtype)) for name, weight in model.named_parameters()]
    return _digest(shapes)


def _training_state(learner: Learner[Config]) -> dict[str, torch.Tensor]:
    state = {"random/cpu": torch.get_rng_state()}
    device = next(learner.model.parameters()).device
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    if learner.critic is not None:
        state |= {f"critic/{name}": tensor.contiguous() for name, tensor in learner.critic.tensors().items()}
    for name, master in _masters(learner).items():
        state[f"{_MASTER}/{name}"] = master.detach().contiguous()
    for name, weight in learner.masters.stepped.items():
        for optimizer in learner.optimizers:
            for kind, value in optimizer.state.get(weight, {}).items():
                tensor = value if torch.is_tensor(value) else torch.tensor(value)
                # bitsandbytes' weights share their table of levels, and in a file each has its own.
                state[f"optimizer/{kind}/{name}"] = tensor.clone() if "qmap" in kind else tensor.contiguous()
    return state


def _masters(learner: Learner[Config]) -> dict[str, torch.nn.Parameter]:
    """Float32 weights that the model is rounded from, where it is exported in another type."""
    masters = learner.masters
    rounded = is_divided(learner.model) and learner.model.config.dtype != torch.float32
    return masters.stepped if rounded else masters.copies


def _read(found: Checkpoint, learner: Learner[Config]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, in memory of their own, or of this rank its part."""
    parts, whole = found.path / _PARTS, found.path / _TENSORS
    if learner.ranks.count == 1 and not parts.is_dir():
        # Copies: what is loaded lies in the mapped file, which is removed some steps later.
        return {name: tensor.clone() for name, tensor in load_file(whole).items()}
    return load_parts(parts if parts.is_dir() else found.path, learner.masters.stepped, learner.ranks)


def _checked(path: Path) -> Checkpoint:
    """A checkpoint whose files are what was written; a ValueError says what is wrong."""
    try:
        content = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{_ABOUT} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"{_ABOUT} is no JSON: it was cut off or changed") from None
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
    return Checkpoint(
        path,
        content["step"],
        content["config"],
        content["state"],
        content["fingerprint"],
        content["versions"],
    )


def _found(folder: Path) -> list[Path]:
    """Folders that are named as checkpoints, newest first."""
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_step, reverse=True)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _libraries(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {found.get(name, '?')}" for name in ("torch", "transformers"))
