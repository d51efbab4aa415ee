"""Findings about one model: can it be read, is its template safe, does the engine serve it, how much memory it needs.

No weights are loaded and none are downloaded: the config, the tokenizer and the headers of the safetensors files say
enough. Code that a stranger put beside a model is never run. Left out: whether the model is any good.
"""

import json
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from palaestra.cli.finding import Finding, reason
from palaestra.cli.machine import available_memory
from palaestra.errors import UsageError
from palaestra.trainers.config import GRPOConfig

_REACH_SECONDS = 5.0
"""How long the hub may take to accept a connection."""


def read(name: str) -> tuple[Any, Any, list[int]] | Finding:
    """Config, tokenizer and stops of a model's folder or hub name, or why they cannot be had."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    from palaestra.agents.local_model import misplaced

    logging.set_verbosity_error()
    if name == "tiny":
        from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer

        return tiny_model(512).config, tiny_tokenizer(["What is 17 * 23? Answer: 391"]), []
    if wrong := misplaced(name):
        return _broken("model", *wrong)
    readers: dict[str, Any] = {"config": AutoConfig, "tokenizer": AutoTokenizer}
    local = Path(name).is_dir()
    if not local:
        try:  # What the hub's cache has needs no network.
            for reader in readers.values():
                reader.from_pretrained(name, trust_remote_code=False, local_files_only=True)
            local = True
        except Exception:  # Not cached, or only in part: the hub is asked, and its answer counts.
            if unreachable := _unreachable(name):
                return unreachable
    parts: dict[str, Any] = {}
    for what, reader in readers.items():
        try:
            parts[what] = reader.from_pretrained(name, trust_remote_code=False, local_files_only=local)
        except Exception as error:  # Broken files end in errors of every kind.
            remedy = "pass a model folder, a hub name, or 'tiny'"
            if "gated" in str(error).lower():
                remedy = "ask for access on the model's page, then: hf auth login"
            elif Path(name).is_dir():
                remedy = "fetch the model again, or train it anew"
            return _broken("model", f"its {what} could not be read: {reason(error)}", remedy)
    try:
        ends = GenerationConfig.from_pretrained(name, local_files_only=local).eos_token_id
    except Exception:  # Many models have none; transformers then goes by the config.
        ends = getattr(parts["config"], "eos_token_id", None)
    return parts["config"], parts["tokenizer"], ends if isinstance(ends, list) else [] if ends is None else [ends]


def model_findings(name: str, run: GRPOConfig | None) -> Iterator[Finding]:
    """Everything there is to say of a model, and of the memory of a run with it where one is described."""
    had = read(name)
    if isinstance(had, Finding):
        yield had
        return
    config, tokenizer, stops = had
    from palaestra.trainers.memory import outline

    try:
        shape = outline(config)
    except UsageError as error:
        shape = None
        yield _broken("architecture", str(error), "choose a causal language model that transformers knows")
    else:
        yield from _architecture(shape, config)
        if Path(name).is_dir():
            yield from _weights(Path(name), shape)
    from palaestra.agents.template import examine

    for remark in examine(tokenizer, ends=stops, words=shape.words if shape else None):
        about, text, state, remedy = astuple(remark)
        yield Finding(about, text, state, remedy, vital=True)
    if shape is not None and run is not None:
        yield from _memory(shape, run)


def verdict(name: str, findings: list[Finding]) -> str:
    """All of it in one sentence."""
    fatal = [finding for finding in findings if finding.fatal]
    warnings = [finding for finding in findings if finding.state == "warning"]
    if fatal:
        first = fatal[0]
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        remedy = f"; {first.remedy}" if first.remedy else ""
        return f"not ready to train with --model {name}: {first.about}: {first.text}{more}{remedy}"
    if warnings:
        names = ", ".join(dict.fromkeys(finding.about for finding in warnings))
        return f"can be trained with --model {name}; mind the warnings: {names}"
    return f"safe to train with --model {name}"


def _architecture(shape: Any, config: Any) -> Iterator[Finding]:
    """Whether the built-in engine serves this model, judged by what the engine itself goes by."""
    name = type(shape.model).__name__
    size = f"{shape.parameters / 1e9:.2f} billion" if shape.parameters >= 1e8 else f"{shape.parameters:,}"
    yield Finding("parameters", f"{size} ({name}, {shape.layers} layers)")
    kinds = set(getattr(shape.model.config, "layer_types", None) or {"full_attention"})
    inner = config.get_text_config()
    window = getattr(inner, "sliding_window", None)
    if kinds != {"full_attention"}:
        text = f"the engine serves full attention in every layer; this model has {', '.join(sorted(kinds))}"
        yield _broken("attention", text, "choose a model without sliding windows or state spaces")
    elif window and getattr(inner, "use_sliding_window", True) and not getattr(inner, "layer_types", None):
        text = f"looks back {window} tokens only: a run stops when a row is longer"
        yield Finding("attention", text, "warning", f"--max-episode-tokens {window}")
    else:
        yield Finding("attention", "full in every layer: the engine serves it")
    if longest := getattr(inner, "max_position_embeddings", None):
        yield Finding("longest row", f"the model was made for {longest} tokens")


def _weights(folder: Path, shape: Any) -> Iterator[Finding]:
    """Whether the safetensors files are there, whole, and hold the weights that the config asks for."""
    from safetensors import SafetensorError, safe_open

    index, named = folder / "model.safetensors.index.json", ["model.safetensors"]
    try:
        if index.is_file():
            named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        yield _broken("weights", f"{index.name} cannot be read: {reason(error)}", "fetch the model again")
        return
    absent = [file for file in named if not (folder / file).is_file()]
    if absent:
        text = f"missing: {', '.join(absent[:3])}{' and others' if len(absent) > 3 else ''}"
        yield _broken("weights", text, "fetch the model again; only safetensors are read")
        return
    found: dict[str, int] = {}
    kinds: set[str] = set()
    for file in named:
        try:
            with safe_open(folder / file, framework="np") as opened:
                for key in opened.keys():  # noqa: SIM118  (the file is no dict)
                    part = opened.get_slice(key)
                    found[key], kinds = math.prod(part.get_shape()), kinds | {part.get_dtype()}
        except (SafetensorError, OSError) as error:
            yield _broken("weights", f"{file} is cut short or damaged: {reason(error)}", "fetch the model again")
            return
    names = {key for key, _ in shape.model.named_parameters()}
    lacking = sorted(names - set(found))
    total = sum(found.values())
    stored = f"{total:,} in {len(named)} files of {'/'.join(sorted(kinds))}"
    # Names may differ by a prefix where transformers renames them; counts then still agree.
    if lacking and total < shape.parameters:
        text = f"{stored}; the config asks for {shape.parameters:,}, and {lacking[0]} is missing"
        yield _broken("weights", text, "what is missing would be random; fetch the model again")
    else:
        yield Finding("weights", f"{stored}, read from the headers alone")


def _memory(shape: Any, run: GRPOConfig) -> Iterator[Finding]:
    """What a run takes, and whether the device at hand has it."""
    import torch

    from palaestra.agents.local_model import find_device
    from palaestra.trainers.memory import attention_keeps_scores, estimate

    device = find_device(run.device)
    scores = attention_keeps_scores(shape, device)
    counted = estimate(shape, run, keeps_scores=scores)
    phases = (("held", counted.held), ("while playing", counted.playing), ("while learning", counted.learning))
    for phase, parts in phases:
        for part in parts:
            yield Finding(f"memory {phase}", f"{amount(part.size)} {part.name} ({part.how})")
    if device.type == "cuda":
        have, where = torch.cuda.get_device_properties(device).total_memory, f"GPU {device.index or 0} has"
    else:
        have, where = available_memory(), "available here:"
    if not have:
        yield Finding("memory in all", f"{amount(counted.total)}; what this machine has is not known", "warning")
    elif counted.total <= have:
        yield Finding("memory in all", f"{amount(counted.total)}; {where} {amount(have)}")
    else:
        one, two = (estimate(shape, replace(run, slots=n), keeps_scores=scores).total for n in (1, 2))
        fitting = 1 + (have - one) // max(1, two - one)
        if fitting >= 1:
            remedy = f"--slots {min(fitting, run.slots)} would fit; a shorter --max-episode-tokens saves most"
        else:
            remedy = "lower --max-episode-tokens and --micro-batch-tokens, or take a smaller model"
        text = f"{amount(counted.total)} if every row is as long as it may be; {where} {amount(have)}"
        yield Finding("memory in all", text, "warning", remedy)


def amount(size: float) -> str:
    """Bytes in the unit that leaves few digits."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def _unreachable(name: str) -> Finding | None:
    """A clear word before the hub's client tries again and again for half a minute."""
    text = f"there is no folder {name!r}, the hub's cache has no such model"
    remedy = "pass a folder, or fetch the model where there is a network"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return _broken("model", f"{text}, and HF_HUB_OFFLINE forbids to ask the hub", remedy)
    if any(os.environ.get(proxy) for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        address = (hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443))
        socket.create_connection(address, _REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        return _broken("model", f"{text}, and {hub.hostname} cannot be reached ({reason(error)})", remedy)
    return None


def _broken(about: str, text: str, remedy: str) -> Finding:
    return Finding(about, text, "broken", remedy, vital=True)
