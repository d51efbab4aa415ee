"""Read the config of a run that is resumed, and compare it with the options given now.

The run folder is not trusted, since it may come from elsewhere. Its config decides what is played and trained; services
that it names (`palaestra.options`) are used only if the caller names them again (`trusted`).

Not in this module: the saved learner (`checkpoint`).
"""

import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from palaestra import formats
from palaestra.errors import ConfigError, UsageError
from palaestra.mixture import environments
from palaestra.options import FORMAT, is_service
from palaestra.plain import as_pair
from palaestra.reading import parsed_json, regular_text
from palaestra.registry import require_loaded, services
from palaestra.trainers.config.env_config import EnvConfig
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.config.recipes import Recipe, own_part_names, parts_of
from palaestra.trainers.config.sections_config import EngineConfig, PlayConfig, ScaleConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.parts import UnloadedPart, load_allowed, module_of
from palaestra.trainers.validation import changed, flat, plain

RunConfig = GRPOConfig | SFTConfig
VERSION = 3
_DROPPED = ("gate_tasks", "first_gate", "gate_every", "warmup_steps", "decay_steps")
"""Cold-start settings of version 2, which are constants since version 3."""
_SAVED = ("save.checkpoint_every", "save.keep_checkpoints", "save.recorded_groups", "play.max_broken_share")
_ENDS = ("eval.early_stopping_patience", "eval.stop_when")
_MEASURED = ("eval.eval_steps", "track", "collapse", "play.max_logprob_gap")
_SERVERS = ("urls", "gpus", "memory_share", "python", "transfer", "weights_folder", "answer_seconds", "restart_seconds")
_JUDGES = ("recipe.judge.url", "recipe.judge.served_as", "recipe.judge.key_env")
FREE = (
    *(*_SAVED, *_JUDGES, *_MEASURED, *_ENDS, "scale.optimizer_offload", "scale.fit", "scale.rank_timeout"),
    *(f"engine.{name}" for name in _SERVERS),
)
"""Options that may differ: they set what is recorded, when a run stops and where tensors are kept, and do not affect
weights."""
_SIZES = ("play.slots", "play.cache_tokens", "optimizer.micro_batch_tokens", "scale.gradient_checkpointing")
_SHARDING = ("scale.reduce_each_pass", "scale.sharding", "scale.sequence_parallel_size")
ROUNDING = (*_SIZES, *_SHARDING, "device", "engine.kind")
"""Options that may differ, with a note: they change the order of sums or the machine, so the last bits change. A run
that ran out of memory may need them."""
_STATE = ("optimizer_bits", "reduce_each_pass", "optimizer_offload")
_OPEN = ("kind", "precision", *_STATE, "gradient_checkpointing", "cache_tokens")
"""Settings that a config may leave open, and that are fixed when the run begins."""
_ENV_FLAGS = {"env-options", "env.options"}
Section = TypeVar("Section", PlayConfig, ScaleConfig, EngineConfig)


def written_config(config: RunConfig) -> str:
    """Serialize a config as JSON that `read_config` can read."""
    content = {"palaestra": VERSION, "kind": config.KIND, **plain(config)}
    try:
        return json.dumps(content, indent=2) + "\n"
    except TypeError as error:
        raise ConfigError(
            f"a setting cannot be written into the run ({error}); use numbers, texts and lists"
        ) from error


def read_config(folder: Path, modules: Collection[str] = ()) -> RunConfig:
    """Read the config of the run in a folder. Parts of its recipe are loaded from `modules` only, which the user has
    named; each other part becomes an `UnloadedPart`.
    """
    path = folder / "config.json"
    try:
        content = parsed_json(regular_text(path))
    except OSError as error:
        raise UsageError(
            f"{folder} holds no run to go on with: {path} cannot be read ({error.strerror}); name the folder of a run; "
            "palaestra train ID --run FOLDER begins one"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON ({error}); was it edited?") from error
    version = content.pop("palaestra", None) if isinstance(content, dict) else None
    if version not in (2, VERSION):
        raise UsageError(f"{path} is not the config of a run that this palaestra can go on with; begin a new run")
    if version == 2 and isinstance(content.get("cold_start"), dict):
        content["cold_start"] = {name: value for name, value in content["cold_start"].items() if name not in _DROPPED}
    kinds: dict[str, RunConfig] = {GRPOConfig.KIND: GRPOConfig(EnvConfig("")), SFTConfig.KIND: SFTConfig()}
    if (kind := str(content.pop("kind", None))) not in kinds:
        raise UsageError(f"{path} is of a run of the kind {kind!r}; expected one of {', '.join(kinds)}")
    try:
        return changed(kinds[kind], content, load_allowed(modules))
    except UsageError as error:
        raise ConfigError(f"{path}: {error} (was it edited?)") from error


def trusted(folder: Path, saved: RunConfig, requested: RunConfig, named_options: Collection[str] = ()) -> RunConfig:
    """Return the requested config. Raise `UsageError` unless the command line repeats every service of the saved one.

    `named_options` holds the options of the command line without their dashes. Environment options that the command
    line does not name are taken from the saved config.
    """
    pairs: dict[str, str] = {}
    if isinstance(saved, GRPOConfig) and isinstance(requested, GRPOConfig):
        require_loaded(saved.env.env_id, str(folder / "config.json"))
        require_loaded_parts(requested.recipe, str(folder / "config.json"))
        new_options = requested.env.options if _ENV_FLAGS & set(named_options) else {}
        pairs = {key: pair for key, pair in _service_pairs(saved.env).items() if key not in new_options}
        options = {key: new_options.get(key, value) for key, value in saved.env.options.items()} | new_options
        texts = {text.partition("=")[0]: text for text in requested.env.env_options}
        # An equal value keeps its spelling, because runs are compared by it.
        texts |= {
            text.partition("=")[0]: text
            for text in saved.env.env_options
            if options[text.partition("=")[0]] == saved.env.options[text.partition("=")[0]]
        }
        requested = replace(requested, env=replace(requested.env, env_options=tuple(texts[key] for key in options)))
    missing_settings = [words for name, words in _service_settings(saved) if name not in named_options]
    if words := [word for part in missing_settings for word in part] + ["--env-options", *pairs.values()] * bool(pairs):
        quoted = shlex.join(words)
        raise UsageError(
            f"{folder / 'config.json'} names services, which are used only if the command names them too: "
            f"{quoted if quoted.isprintable() else repr(quoted)}; if you trust it, add these words to the command (in "
            "Python, pass the config)"
        )
    return requested


def repeated(config: RunConfig) -> list[str]:
    """Return the words that a command line with --resume must repeat: services and code that are not used if only
    `config.json` names them.
    """
    flags = [word for _, words in _service_settings(config) for word in words]
    if isinstance(config, GRPOConfig):
        env = config.env
        modules = {
            class_path.rpartition(":")[0] for class_path, _ in environments(env.env_id, env.options).values()
        } - {""}
        modules |= {module_of(name) for name in own_part_names(config.recipe)}
        pairs = _service_pairs(env)
        flags += ["--env-options", *pairs.values()] * bool(pairs) + ["--allow-code", *sorted(modules)] * bool(modules)
    return flags


def require_loaded_parts(recipe: Recipe, where: str) -> None:
    """Raise `UsageError` if a part of the recipe was named by a file and its module was not imported."""
    for kind, part in parts_of(recipe).items():
        if isinstance(part, UnloadedPart):
            raise UsageError(
                f"{where} names code ({kind} {part.name!r}), and what a file names is not imported; if you trust it, "
                f"add --allow-code {module_of(part.name)}"
            )


def _service_pairs(env: EnvConfig) -> dict[str, str]:
    """Return the environment's options that name services: the text KEY=VALUE by key."""
    return {key: as_pair(key, value) for key, value in services(env.env_id, env.options).items()}


def _service_settings(config: Any, above: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each setting that names a service and is not the default: its name, and its words on a command line."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value, name = getattr(config, field.name), f"{above}{field.name}".replace("_", "-")
        if is_dataclass(value):
            yield from _service_settings(value, f"{name}.")
        elif is_service(hints[field.name]) and value != field.default:
            # Quote a value that begins with a dash, so that it is not read as an option when the words are copied.
            values = [
                repr(word) if word.startswith("-") else word for word in ([value] if isinstance(value, str) else value)
            ]
            # Each tracker has a flag of its own.
            yield (
                name,
                [w for word in values for w in (f"--{name}", word)] if name == "track" else [f"--{name}", *values],
            )


def configs_around(model: str) -> Iterator[RunConfig]:
    """Yield the configs of the runs whose folder holds the model's folder, the nearest first."""
    for folder in Path(model).resolve().parents[:3] if Path(model).is_dir() else ():
        with suppress(UsageError):
            yield read_config(folder)


def options_changed(model: str, env_id: str, options: Mapping[str, Any]) -> str:
    """Return a note if a model's run trained it in this environment with other options; "" if it did not."""
    beside = (FORMAT, "split")
    present = {key: value for key, value in options.items() if key not in beside}
    for config in configs_around(model):
        if isinstance(config, GRPOConfig) and config.env.env_id.rpartition(":")[2] == env_id.rpartition(":")[2]:
            trained = {key: value for key, value in config.env.options.items() if key not in beside}
            then, now = (" ".join(as_pair(*pair) for pair in each.items()) or "none" for each in (trained, present))
            differ = f"{model} was trained with other --env-options: {then}; here they are {now}"
            return differ if trained != present else ""
    return ""


def trained_format(model: str) -> str | None:
    """Return the call format that a model was trained to write. Return None unless the model is in a run's folder whose
    config names exactly one format.
    """
    for config in configs_around(model):
        if isinstance(config, SFTConfig):
            call_formats = {config.format}
        else:  # Environments of a mixture may differ; a model with several formats gives no answer.
            call_formats = {value for key, value in config.env.options.items() if key.rpartition(".")[2] == FORMAT}
        if len(call_formats) == 1 and call_formats <= set(formats.FORMATS):
            return str(*call_formats)
    return None


def refused(saved: RunConfig, requested: RunConfig) -> str:
    """Return, as text, the settings that differ although they must be equal, with both values; "" if there are none."""
    saved_values, new_values = flat(plain(saved)), flat(plain(requested))
    changed_keys = [
        key
        for key in {**saved_values, **new_values}
        if saved_values.get(key) != new_values.get(key) and key not in (*FREE, *ROUNDING)
    ]
    length = requested.LENGTH
    if (
        length in changed_keys
        and requested.optimizer.lr_schedule == "constant"
        and saved_values[length] < new_values[length]
    ):
        changed_keys.remove(length)
    text = differences({key: saved_values.get(key) for key in changed_keys}, new_values)
    return text + (f"; {length} may grow, and only where lr_schedule is 'constant'" if length in changed_keys else "")


def settled(saved: RunConfig, requested: RunConfig) -> RunConfig:
    """Return the requested config, with its open settings as they were fixed when the run began: the call format, and
    the settings that make a model fit. The caller does not have to repeat them.
    """
    if isinstance(saved, SFTConfig) and isinstance(requested, SFTConfig):
        return replace(requested, format=requested.format or saved.format, scale=_filled(requested.scale, saved.scale))
    if not isinstance(saved, GRPOConfig) or not isinstance(requested, GRPOConfig):
        return requested
    requested = replace(
        requested,
        scale=_filled(requested.scale, saved.scale),
        play=_filled(requested.play, saved.play),
        engine=_filled(requested.engine, saved.engine),
    )
    options = requested.env.options
    keys = {text: text.partition("=")[0] for text in saved.env.env_options}
    saved_formats = [text for text, key in keys.items() if key.rpartition(".")[2] == FORMAT and key not in options]
    return replace(requested, env=replace(requested.env, env_options=(*requested.env.env_options, *saved_formats)))


def _filled(requested: Section, saved: Section) -> Section:
    """Return the section with its open settings replaced by the saved ones."""
    open_names = [
        field.name
        for field in fields(requested)
        if getattr(requested, field.name) in (None, "auto") and field.name in _OPEN
    ]
    return replace(requested, **{name: getattr(saved, name) for name in open_names})


def agreed(saved: RunConfig, requested: RunConfig, folder: Path) -> list[str]:
    """Raise `ConfigError` if a resumed run would become a different run. Return notes for the user."""
    if text := refused(saved, requested):
        raise ConfigError(
            f"the run in {folder} began with other options: {text}; leave them out to go on with it, or begin a new "
            "run with --run"
        )
    saved_values, new_values = flat(plain(saved)), flat(plain(requested))
    rounding = [name for name in ROUNDING if saved_values.get(name) != new_values.get(name)]
    if not rounding:
        return []
    return [f"with other {' and '.join(rounding)} the run goes on, but the last bits of its figures change"]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return each key of `saved` that differs, with both values, as text."""
    return "; ".join(
        f"{key} was {value!r} and is {now.get(key)!r}" for key, value in saved.items() if value != now.get(key)
    )
