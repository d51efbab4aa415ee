"""Opens an environment by its id, as an arena or as one Playable: our own, external Gymnasium and PettingZoo
environments.

`palaestra.arena` finds these functions by name. Left out: creating an author's object and its machine (`opening`).
"""

import threading
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import gymnasium

from palaestra.envs.arena.arena import LocalArena
from palaestra.envs.arena.by_rule import ByRule
from palaestra.envs.arena.foreign import Foreign
from palaestra.envs.arena.foreign_kinds import AECMachine, GymnasiumMachine, ParallelMachine
from palaestra.envs.arena.mixed import MixedArena
from palaestra.envs.arena.opening import machine_of, make_author, spec_of
from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.ray import RayArena
from palaestra.envs.arena.vector import ToolVectorEnv
from palaestra.errors import UnknownId, UsageError
from palaestra.mixture import environments, read_mixture
from palaestra.options import OF_ARENAS
from palaestra.registry import as_registered, demonstrator, games, load_author, registered, registered_author

_lock = threading.Lock()


def open_arena(
    env_id: str, slots: int, *, workers: int = 0, ray_address: str = "", **options: Any
) -> LocalArena | RayArena:
    """Open an arena for any id; with `workers`, Ray actors play its episodes."""
    if workers or ray_address:
        return RayArena(env_id, slots, workers, ray_address, **options)
    arena_options = {name: options.pop(name) for name in ("ordered", "max_workers", "timeout") if name in options}
    if (mixture := read_mixture(env_id)) is not None:
        timeout = arena_options.pop("timeout", 60.0)
        makes = {name: playables(*arguments, timeout) for name, arguments in environments(env_id, options).items()}
        return MixedArena(mixture, makes, slots, name=env_id, **arena_options)
    name = env_id.rpartition(":")[2]
    entry = registered_author(env_id)
    if entry is not None and options.get("seat") is None:
        author = make_author(entry[0], {**entry[1], **options}, env_id)
        if not author.seats:
            arena_options.pop("timeout", None)
            return ToolVectorEnv(author, slots, env_id=name, **arena_options)
    make = playables(env_id, options, arena_options.get("timeout", 60.0))
    hint = "" if entry is None else ", or open it with seat=NAME to play one against its demonstrator"
    return LocalArena({"": make}, slots, name=name, hint=hint, **arena_options)


def open_playable(env_id: str, options: Mapping[str, Any]) -> Playable:
    """Open one Playable (a single environment or game) for an environment id of any kind."""
    return playables(env_id, {name: value for name, value in options.items() if name not in OF_ARENAS})()


def playables(env_id: str, options: Mapping[str, Any], timeout: float = 60.0) -> Callable[[], Playable]:
    """Return a function that makes machines for an id. With a game's option `seat`, demonstrators play other seats."""
    name = env_id.rpartition(":")[2]
    entry = registered_author(env_id)
    if entry is not None:
        author_options = {**entry[1], **options}
        seat = author_options.pop("seat", None)
        spec = spec_of(make_author(entry[0], author_options, env_id), as_registered(name))
        if seat is None:
            return lambda: machine_of(spec)
        if spec.solo:
            raise UsageError(f"{env_id} has one seat; expected no option seat={seat!r}")
        return lambda: ByRule(machine_of(spec), seat, demonstrator(name))
    if name in gymnasium.registry:
        return _of_gymnasium(name, dict(options), timeout)
    if in_pettingzoo(name):
        return _of_pettingzoo(name, dict(options), timeout)
    raise UnknownId(env_id, [*registered(), *games()])


def _of_gymnasium(env_id: str, options: dict[str, Any], timeout: float) -> Callable[[], Playable]:
    """Return a function that makes machines of an external Gymnasium environment."""

    def make(**kwargs: Any) -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **kwargs)

    return _foreign(env_id, GymnasiumMachine, gymnasium.spec(env_id).entry_point, make, options, timeout)


def _of_pettingzoo(env_id: str, options: dict[str, Any], timeout: float) -> Callable[[], Playable]:
    """Return a function that makes machines of a PettingZoo environment: of its AEC interface, if it has both."""
    import pettingzoo  # type: ignore[import-untyped]

    kind = "aec" if _known(pettingzoo.aec_registry, env_id) else "parallel"
    creator = pettingzoo.spec(kind, env_id).entry_point

    def make(**kwargs: Any) -> Any:
        return pettingzoo.make(kind, env_id, **kwargs)

    return _foreign(env_id, AECMachine if kind == "aec" else ParallelMachine, creator, make, options, timeout)


def in_pettingzoo(env_id: str) -> bool:
    """Return whether PettingZoo is installed and has the id."""
    try:
        import pettingzoo
    except ImportError:
        return False
    if not hasattr(pettingzoo, "register"):  # Before 1.27 it had no registry.
        return False
    return _known(pettingzoo.aec_registry, env_id) or _known(pettingzoo.parallel_registry, env_id)


def _known(registry: Mapping[str, Any], env_id: str) -> bool:
    from pettingzoo.env_registry.exceptions import PettingZooRegistryError  # type: ignore[import-untyped]
    from pettingzoo.env_registry.helpers import find_spec  # type: ignore[import-untyped]

    try:
        find_spec(registry, env_id)
    except PettingZooRegistryError:
        return False
    return True


def _foreign(
    env_id: str,
    kind: type[Foreign],
    creator: Any,
    make: Callable[..., Any],
    options: dict[str, Any],
    timeout: float,
) -> Callable[[], Playable]:
    if isinstance(creator, str):
        creator = load_author(creator, f"{env_id}: its entry point")
    success_at = options.pop("success_at", None)
    split = options.pop("split", "train")
    if split not in ("train", "eval"):
        raise UsageError(f"split is {split!r}; expected 'train' or 'eval'")
    takes_split = _takes(creator, "split")
    if takes_split:
        options["split"] = split

    def made_one() -> Any:
        try:
            with _lock:  # External registries and constructors are not thread-safe.
                return make(**options)
        except TypeError as error:
            raise UsageError(f"{env_id} cannot be made with {options}: {error}") from error

    return lambda: kind(made_one, env_id, None if takes_split else split, success_at, timeout)


def _takes(creator: Any, option: str) -> bool:
    try:
        parameter = signature(creator).parameters.get(option)
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.kind is not Parameter.VAR_KEYWORD
