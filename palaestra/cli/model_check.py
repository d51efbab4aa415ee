"""Findings about one model: can it be read, is its template safe, does the engine serve it, how much memory it needs.

No weights are loaded and none are downloaded: the config, the tokenizer and the headers of the safetensors files say
enough. Python code in the folder of a model is never run. Left out: whether the model is any good.
"""

import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from palaestra.agents.adapters import base_name, is_adapter
from palaestra.agents.engines.packed_layers import has_bfloat16, is_x86, packed_weights
from palaestra.agents.engines.vllm.checks import refused_on_cpu
from palaestra.agents.known_models import located
from palaestra.agents.local_model import find_device
from palaestra.agents.model_folder import misplaced
from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer
from palaestra.agents.template import examine
from palaestra.cli.finding import DoctorFinding, reason
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig, laptop_config
from palaestra.trainers.learn.attention_kernels import kernel_for
from palaestra.trainers.scale.available_memory import Room, amount, room_of
from palaestra.trainers.scale.fit_memory import counted, fits, fitted, refusal
from palaestra.trainers.scale.memory_estimate import Outline, outline


def model_findings(name: str, run: GRPOConfig | None, room: Room | None = None) -> Iterator[DoctorFinding]:
    """Yield the findings about a model; if `run` and `room` are given, also about the memory of that run."""
    try:
        folder = located(name)
        config, tokenizer, stops = read(folder)
    except Exception as error:  # Broken files end in errors of every kind, and so does the hub.
        text, _, remedy = reason(error).partition("; ")
        yield _broken("model", text, remedy or "fetch the model again, or pass a model folder, a hub name, or 'tiny'")
        return
    shape = None
    try:
        shape = outline(config)
    except UsageError as error:
        yield _broken("architecture", str(error), "choose a causal language model that transformers knows")
    if shape is not None:
        yield from _architecture(shape)
        if Path(folder).is_dir():
            yield from _weights(Path(folder), shape)
        if (largest := max(tokenizer.get_vocab().values(), default=0)) >= shape.words:
            text = f"the tokenizer has ids up to {largest}, the model knows {shape.words}"
            yield _broken("vocabulary", text, "take tokenizer and model from the same place")
    for finding in examine(tokenizer, stops):
        yield DoctorFinding(finding.about, finding.text, finding.state, finding.remedy, vital=True)
    if shape is not None and run is not None and room is not None:
        yield from _memory(config, run, room)
    elif shape is not None and name != "tiny" and find_device("auto").type == "cpu":
        yield from _without_gpu(name, folder, config, shape)


def read(name: str) -> tuple[Any, Any, list[int]]:
    """Return config, tokenizer and stop tokens of a model's folder or hub name."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.utils import hub
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity(logging.CRITICAL)
    if name == "tiny":
        return tiny_model(512).config, tiny_tokenizer(["What is 17 * 23? Answer: 391"]), []
    if wrong := misplaced(name):
        raise UsageError("; ".join(wrong))
    if is_adapter(Path(name)):
        raise UsageError(f"{name!r} holds an adapter; ask about its base, {base_name(Path(name))!r}")
    readers: dict[str, Any] = {"config": AutoConfig, "tokenizer": AutoTokenizer}
    parts: dict[str, Any] = {}
    for local in (True, False):  # What the hub's cache has needs no network.
        try:
            for what, reader in readers.items():
                parts[what] = reader.from_pretrained(name, trust_remote_code=False, local_files_only=local)
            break
        except Exception as error:
            if not local or Path(name).is_dir():
                raise UsageError(f"its {what} could not be read: {reason(error)}") from error
        if not hub.has_file(name, "config.json"):  # Loading would try again and again for half a minute.
            offline = os.environ.get("HF_HUB_OFFLINE", "0") != "0"
            why = "HF_HUB_OFFLINE forbids to ask the hub" if offline else "the hub cannot be reached"
            text = f"there is no folder {name!r}, the hub's cache has no such model, and {why}"
            raise UsageError(f"{text}; pass a folder, or fetch the model where there is a network")
    try:
        ends = GenerationConfig.from_pretrained(name, local_files_only=local).eos_token_id
    except Exception:  # Many models have none; transformers then goes by the config.
        ends = getattr(parts["config"], "eos_token_id", None)
    return parts["config"], parts["tokenizer"], ends if isinstance(ends, list) else [] if ends is None else [ends]


def _architecture(shape: Outline) -> Iterator[DoctorFinding]:
    """Yield findings on the size of a model, and on whether the built-in engine and vLLM can serve it."""
    name = type(shape.model).__name__
    size = f"{shape.parameters / 1e9:.2f} billion" if shape.parameters >= 1e8 else f"{shape.parameters:,}"
    yield DoctorFinding("parameters", f"{size} ({name}, {shape.layers} layers)")
    kinds = set(getattr(shape.model.config, "layer_types", None) or {"full_attention"})
    inner = shape.model.config.get_text_config()
    window = getattr(inner, "sliding_window", None)
    if kinds != {"full_attention"}:
        text = f"the engine serves full attention in every layer; this model has {', '.join(sorted(kinds))}"
        yield _broken("attention", text, "choose a model without sliding windows or state spaces")
    elif window and getattr(inner, "use_sliding_window", True) and not getattr(inner, "layer_types", None):
        text = f"looks back {window} tokens only: a run stops when a row is longer"
        yield DoctorFinding("attention", text, "warning", f"--play.max-episode-tokens {window}")
    else:
        yield DoctorFinding("attention", "full in every layer: the engine serves it")
    if why := refused_on_cpu(shape.model.config):
        yield DoctorFinding("vllm", why)
    if longest := getattr(inner, "max_position_embeddings", None):
        yield DoctorFinding("longest row", f"the model was made for {longest} tokens")


def _weights(folder: Path, shape: Outline) -> Iterator[DoctorFinding]:
    """Yield a finding: are the safetensors files there and complete, and do they hold the weights that the config
    asks for?
    """
    from safetensors import safe_open

    file, files = "model.safetensors.index.json", ["model.safetensors"]
    sizes: dict[str, int] = {}
    kinds: set[str] = set()
    try:
        if (folder / file).is_file():
            files = sorted(set(json.loads((folder / file).read_text("utf-8"))["weight_map"].values()))
        for file in files:
            with safe_open(folder / file, framework="np") as opened:
                for key in opened.keys():  # noqa: SIM118  (the file is no dict)
                    part = opened.get_slice(key)
                    sizes[key], kinds = math.prod(part.get_shape()), kinds | {part.get_dtype()}
    except FileNotFoundError:
        yield _broken("weights", f"missing: {file}", "fetch the model again; only safetensors are read")
        return
    except Exception as error:  # SafetensorError, or any error of a file that is not an index.
        yield _broken("weights", f"{file} is cut short or damaged: {reason(error)}", "fetch the model again")
        return
    lacking = sorted({key for key, _ in shape.model.named_parameters()} - set(sizes))
    total = sum(sizes.values())
    stored = f"{total:,} in {len(files)} files of {'/'.join(sorted(kinds))}"
    # Names may differ by a prefix where transformers renames them; counts then still agree.
    if lacking and total < shape.parameters:
        text = f"{stored}; the config asks for {shape.parameters:,}, and {lacking[0]} is missing"
        yield _broken("weights", text, "what is missing would be random; fetch the model again")
    else:
        yield DoctorFinding("weights", f"{stored}, read from the headers alone")


def _without_gpu(name: str, folder: str, config: Any, shape: Outline) -> Iterator[DoctorFinding]:
    """Yield findings on how to train a model on this CPU: settings, their memory, and the precision to sample in."""
    text = f"there is no GPU; a small model trains by: palaestra train ID --model {name} --preset laptop"
    yield DoctorFinding("settings", text)
    laptop = laptop_config("palaestra/TwoHop-v0", model=folder, device="cpu")
    *_, total = _memory(config, laptop, room_of(find_device("cpu")))
    yield replace(total, about="with --preset laptop", text=f"memory in all: {total.text}")
    if is_x86() and packed_weights(shape.model):
        text = "this CPU has no instructions for bfloat16, in which it would be several times slower: keep float32"
        if has_bfloat16():
            text = "this CPU has instructions for bfloat16; play is faster with --engine.sampling-precision bfloat16"
        yield DoctorFinding("precision", text)


def _memory(config: Any, run: GRPOConfig, room: Room) -> Iterator[DoctorFinding]:
    """Yield findings on the memory that a run needs, whether there is enough, and what `train` would change to fit."""
    import torch

    chooses = room.on_gpu if run.scale.fit is None else run.scale.fit
    refused = ""
    try:
        fit = (fitted if chooses else counted)(run, config, room)
    except UsageError as error:
        fit, refused = counted(run, config, room), str(error)
    device, needed = find_device(run.device), fit.estimate
    if room.on_gpu == (device.type == "cuda"):  # It is asked for this device, not for one that is not here.
        shape = outline(config)
        kernel = kernel_for(device, getattr(torch, fit.config.scale.precision), shape.head_width)
        yield DoctorFinding("attention kernel", f"{kernel.name}, in the learner")
    phases = {
        "held": needed.persistent,
        "while playing": needed.playing,
        "while learning": needed.learning,
        "in a step": needed.stepping,
        "in main memory": needed.host,
    }
    for phase, parts in phases.items():
        for part in parts:
            yield DoctorFinding(f"memory {phase}", f"{amount(part.size)} {part.name} ({part.how})")
    if fit.notes:
        yield DoctorFinding("fit", f"train chooses {', '.join(fit.notes)}")
    total = f"{amount(needed.total)}"
    if not room.device:
        yield DoctorFinding("memory in all", f"{total}; what this machine has is not known", "warning")
    elif fits(needed, room):
        yield DoctorFinding("memory in all", f"{total}; available on {room.name}: {amount(room.device)}")
    else:
        text, _, remedy = (refused or refusal(fit.config, config, room)).rpartition(". ")
        yield DoctorFinding("memory in all", text, "warning", remedy)


def _broken(about: str, text: str, remedy: str) -> DoctorFinding:
    return DoctorFinding(about, text, "broken", remedy, vital=True)
