"""The config of a run that is gone on with: read from its folder, and held against what is asked for now.

Left out: the learner itself (`checkpoint`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from palaestra import formats
from palaestra.errors import ConfigError, UsageError
from palaestra.trainers.config import GRPOConfig, config_from

FREE = ("checkpoint_every", "keep_checkpoints", "recorded_groups", "max_broken_share")
"""May differ: they say what is written down and when to give up, and no weight depends on them."""
_FORMAT = "format="
ROUNDING = ("slots", "micro_batch_tokens", "device")
"""May differ, with a note: the same sums in another order or on another machine, so the last bits change. A run that
has run out of memory needs them."""


def read_config(folder: Path) -> GRPOConfig:
    """The config of the run in a folder."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{folder} holds no run to go on with: {path} cannot be read ({error.strerror}); "
            f"begin one with: palaestra train ID --run {folder}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}); was it edited?") from error
    if not isinstance(content, dict) or "env_id" not in content:
        raise UsageError(f"{path} is not the config of a run: it names no env_id")
    recipe = content.pop("algorithm", None)
    try:
        config = config_from(content)
    except UsageError as error:
        raise ConfigError(f"{path}: {error} (was it edited?)") from error
    # Only what was written: a field that recipes have got since then leaves older ones as they were.
    then = recipe if isinstance(recipe, dict) else {}
    changes = differences(then, {key: value for key, value in asdict(config.algorithm).items() if key in then})
    if changes:
        raise ConfigError(
            f"{path}: the recipe {config.recipe!r} is no longer what this run began with: {changes}; go on with the "
            "palaestra that it began with, or begin a new run"
        )
    return config


def trained_format(model: str) -> str | None:
    """The call format that a model has been trained to write, where it lies in the folder of a run that says so."""
    for folder in Path(model).resolve().parents[:3] if Path(model).is_dir() else ():
        try:
            content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if not isinstance(content, dict):
            continue
        pairs = content.get("env_options")
        texts = [text for text in pairs if isinstance(text, str)] if isinstance(pairs, list) else []
        named = next((text.removeprefix(_FORMAT) for text in texts if text.startswith(_FORMAT)), content.get("format"))
        if named in formats.FORMATS:
            return str(named)
    return None


def refused(saved: Mapping[str, Any], asked: GRPOConfig) -> str:
    """What differs from a config that was written down and must not, with both values; empty if nothing does."""
    now, saved = _plain(asked), {**_plain(asked), **saved}
    wrong = [key for key in now if saved[key] != now[key] and key not in (*FREE, *ROUNDING)]
    if now["lr_schedule"] == "constant" and saved["steps"] < now["steps"] and "steps" in wrong:
        wrong.remove("steps")
    listed = differences({key: saved[key] for key in wrong}, {key: now[key] for key in wrong})
    return listed + ("; steps may grow, and only where lr_schedule is 'constant'" if "steps" in wrong else "")


def settled(saved: GRPOConfig, asked: GRPOConfig) -> GRPOConfig:
    """What is asked for, with the call format that the run was pinned to at its start: nobody has to name that."""
    pinned = [text for text in saved.env_options if text.startswith(_FORMAT)]
    if any(text.startswith(_FORMAT) for text in asked.env_options):
        return asked
    return replace(asked, env_options=(*asked.env_options, *pinned))


def agreed(saved: GRPOConfig, asked: GRPOConfig, folder: Path) -> list[str]:
    """Refuse to go on with a run under a config that would make another run of it; returns what should be known."""
    if wrong := refused(_plain(saved), asked):
        raise ConfigError(
            f"the run in {folder} began with other options: {wrong}; leave them out to go on with it, or begin a new "
            "run with --run"
        )
    rounding = [name for name in ROUNDING if getattr(saved, name) != getattr(asked, name)]
    if not rounding:
        return []
    return [f"with other {' and '.join(rounding)} the run goes on, but the last bits of its figures change"]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Each key that differs, with both values."""
    keys = [key for key in {**saved, **now} if saved.get(key) != now.get(key)]
    return "; ".join(f"{key} was {saved.get(key)!r} and is {now.get(key)!r}" for key in keys)


def _plain(config: GRPOConfig) -> dict[str, Any]:
    """As JSON gives it back."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return content
