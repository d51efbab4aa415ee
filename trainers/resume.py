"""The config of a run that is gone on with: read from its folder, and held against what is asked for now.

Left out: the learner itself (`checkpoint`).
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from palaestra import formats
from palaestra.errors import ConfigError, UsageError
from palaestra.options import FORMAT
from palaestra.trainers.checked import changed, flat, plain
from palaestra.trainers.config import GRPOConfig, PlayConfig, ScaleConfig
from palaestra.trainers.env_config import EnvConfig
from palaestra.trainers.sft_config import SFTConfig

RunConfig = GRPOConfig | SFTConfig
VERSION = 2
_SAVED = ("save.checkpoint_every", "save.keep_checkpoints", "save.recorded_groups", "play.max_broken_share")
_MEASURED = ("eval.eval_steps", "eval.early_stopping_patience", "track", "collapse", "play.max_logprob_gap")
_SERVERS = ("urls", "transfer", "weights_folder", "answer_seconds", "restart_seconds")
_JUDGES = ("recipe.judge.url", "recipe.judge.served_as", "recipe.judge.key_env")
FREE = (
    *(*_SAVED, *_JUDGES, *_MEASURED, "scale.optimizer_offload", "scale.fit", "scale.rank_timeout"),
    *(f"engine.{name}" for name in _SERVERS),
)
"""May differ: they say what is written down, when to give up and where tensors wait, and no weight depends on them."""
_SIZES = ("play.slots", "play.cache_tokens", "optimizer.micro_batch_tokens", "scale.gradient_checkpointing")
ROUNDING = (*_SIZES, "device", "engine.kind")
"""May differ, with a note: the same sums in another order or on another machine, so the last bits change. A run that
has run out of memory needs them."""
_OPEN = ("precision", "optimizer_bits", "optimizer_offload", "gradient_checkpointing", "cache_tokens")
"""What a config may leave open, and the beginning of a run settles."""
Section = TypeVar("Section", PlayConfig, ScaleConfig)


def written_config(config: RunConfig) -> str:
    """As `read_config` reads it back."""
    return json.dumps({"palaestra": VERSION, "kind": config.KIND, **plain(config)}, indent=2) + "\n"


def read_config(folder: Path) -> RunConfig:
    """The config of the run in a folder."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{folder} holds no run to go on with: {path} cannot be read ({error.strerror}); name the folder of a run; "
            "palaestra train ID --run FOLDER begins one"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}); was it edited?") from error
    if not isinstance(content, dict) or content.pop("palaestra", None) != VERSION:
        raise UsageError(f"{path} is not the config of a run that this palaestra can go on with; begin a new run")
    kinds: dict[str, RunConfig] = {GRPOConfig.KIND: GRPOConfig(EnvConfig("")), SFTConfig.KIND: SFTConfig()}
    if (kind := content.pop("kind", None)) not in kinds:
        raise UsageError(f"{path} is of a run of the kind {kind!r}; expected one of {', '.join(kinds)}")
    try:
        return changed(kinds[kind], content)
    except UsageError as error:
        raise ConfigError(f"{path}: {error} (was it edited?)") from error


def trained_format(model: str) -> str | None:
    """The call format that a model has been trained to write, where it lies in the folder of a run that says so."""
    for folder in Path(model).resolve().parents[:3] if Path(model).is_dir() else ():
        try:
            config = read_config(folder)
        except UsageError:
            continue
        if isinstance(config, SFTConfig):
            named = {config.format}
        else:  # Each environment of a mixture has its own; a model that writes several is no guide.
            named = {value for key, value in config.env.options.items() if key.rpartition(".")[2] == FORMAT}
        if len(named) == 1 and named <= set(formats.FORMATS):
            return str(*named)
    return None


def refused(saved: RunConfig, asked: RunConfig) -> str:
    """What differs from a config that was written down and must not, with both values; empty if nothing does."""
    then, now = flat(plain(saved)), flat(plain(asked))
    wrong = [key for key in {**then, **now} if then.get(key) != now.get(key) and key not in (*FREE, *ROUNDING)]
    length = asked.LENGTH
    if length in wrong and asked.optimizer.lr_schedule == "constant" and then[length] < now[length]:
        wrong.remove(length)
    listed = differences({key: then.get(key) for key in wrong}, now)
    return listed + (f"; {length} may grow, and only where lr_schedule is 'constant'" if length in wrong else "")


def settled(saved: RunConfig, asked: RunConfig) -> RunConfig:
    """What is asked for, with what it leaves open as it was settled when the run began: the call format, and what makes
    a model fit. Nobody has to name that.
    """
    if isinstance(saved, SFTConfig) and isinstance(asked, SFTConfig):
        return replace(asked, format=asked.format or saved.format, scale=_filled(asked.scale, saved.scale))
    if not isinstance(saved, GRPOConfig) or not isinstance(asked, GRPOConfig):
        return asked
    asked = replace(asked, scale=_filled(asked.scale, saved.scale), play=_filled(asked.play, saved.play))
    given = asked.env.options
    keys = {text: text.partition("=")[0] for text in saved.env.env_options}
    found = [text for text, key in keys.items() if key.rpartition(".")[2] == FORMAT and key not in given]
    return replace(asked, env=replace(asked.env, env_options=(*asked.env.env_options, *found)))


def _filled(asked: Section, saved: Section) -> Section:
    """A section whose open settings are those that were saved."""
    left = [one.name for one in fields(asked) if getattr(asked, one.name) in (None, "auto") and one.name in _OPEN]
    return replace(asked, **{name: getattr(saved, name) for name in left})


def agreed(saved: RunConfig, asked: RunConfig, folder: Path) -> list[str]:
    """Refuse to go on with a run under a config that would make another run of it; returns what should be known."""
    if wrong := refused(saved, asked):
        raise ConfigError(
            f"the run in {folder} began with other options: {wrong}; leave them out to go on with it, or begin a new "
            "run with --run"
        )
    then, now = flat(plain(saved)), flat(plain(asked))
    rounding = [name for name in ROUNDING if then.get(name) != now.get(name)]
    if not rounding:
        return []
    return [f"with other {' and '.join(rounding)} the run goes on, but the last bits of its figures change"]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Each key of `saved` that differs, with both values."""
    return "; ".join(
        f"{key} was {value!r} and is {now.get(key)!r}" for key, value in saved.items() if value != now.get(key)
    )
