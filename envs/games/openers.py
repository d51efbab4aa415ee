"""Opens as a GameArena whatever is no ToolEnv: our games, foreign Gymnasium environments, PettingZoo's.

`palaestra.arena` finds these functions by name. Left out: ToolEnv, whose arena is `vector`.
"""

import threading
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import gymnasium

from palaestra import formats
from palaestra.envs.games.foreign import AECMatch, Foreign, GymnasiumMatch, ParallelMatch
from palaestra.envs.games.game import Game
from palaestra.envs.games.game_arena import GameArena
from palaestra.envs.games.match import Match
from palaestra.envs.games.partners import Partnered, Rule
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.registry import demonstrator, load_author, registered_game

_ARENA_OPTIONS = ("ordered", "max_workers", "timeout")
_lock = threading.Lock()


def open_game(game_id: str, slots: int, entry_point: str, rule: Callable[[], Rule], **options: Any) -> GameArena:
    """A game of `palaestra.register_game`. With `seat`, that seat alone; the others are played by demonstrators."""
    own = {name: options.pop(name) for name in _ARENA_OPTIONS if name in options}
    seat = options.pop("seat", None)
    first = made(entry_point, options)

    def make() -> Match:
        game: Game = made(entry_point, options)
        game.use_tasks(first.tasks)  # One task set for all: fixed data is loaded once.
        return game if seat is None else Partnered(game, seat, rule(), game.format)

    hint = ", or open it with seat=NAME to play one against its demonstrator"
    return GameArena(make, slots, name=game_id, hint=hint, **own)


def one_game(game_id: str, options: Mapping[str, Any]) -> tuple[Match, Game]:
    """One game by id, and what drives it: the game itself or, with `seat`, that seat of it."""
    entry_point, registered_with = registered_game(game_id)
    given = {name: value for name, value in {**registered_with, **options}.items() if name not in _ARENA_OPTIONS}
    seat = given.pop("seat", None)
    game = made(entry_point, given)
    return (game if seat is None else Partnered(game, seat, demonstrator(game_id), game.format)), game


def made(entry_point: str, options: Mapping[str, Any]) -> Game:
    """The game of a registered class. The option `format` is ours, whatever its constructor takes."""
    found = load_author(entry_point, "the game's class")
    if not (isinstance(found, type) and issubclass(found, Game)):
        raise EnvironmentDefect(
            f"{entry_point!r} is not a subclass of Game; palaestra.register_game takes Game classes, "
            "pettingzoo.register all others"
        )
    own = {name: value for name, value in options.items() if name != "format"}
    try:
        signature(found).bind(**own)
    except TypeError as error:
        takes = ", ".join(signature(found).parameters)
        raise UsageError(f"{found.__name__}: {error}; it takes {takes or 'no option'}") from error
    game = found(**own)
    if "format" in options:
        game.format = formats.known(options["format"])
    return game


def open_gymnasium(env_id: str, slots: int, **options: Any) -> GameArena:
    """A Gymnasium environment of somebody else's."""
    spec = gymnasium.spec(env_id)
    creator = spec.entry_point
    if isinstance(creator, str):
        creator = load_author(creator, f"{env_id}: its entry point")

    def make(**rest: Any) -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **rest)

    return _open(env_id, slots, GymnasiumMatch, creator, make, options)


def open_pettingzoo(env_id: str, slots: int, **options: Any) -> GameArena:
    """A PettingZoo environment of somebody else's; AEC where it is registered as both."""
    import pettingzoo  # type: ignore[import-untyped]

    kind = "aec" if _known(pettingzoo.aec_registry, env_id) else "parallel"
    creator = pettingzoo.spec(kind, env_id).entry_point
    if isinstance(creator, str):
        creator = load_author(creator, f"{env_id}: its entry point")

    def make(**rest: Any) -> Any:
        return pettingzoo.make(kind, env_id, **rest)

    return _open(env_id, slots, AECMatch if kind == "aec" else ParallelMatch, creator, make, options)


def in_pettingzoo(env_id: str) -> bool:
    """Whether PettingZoo is installed and knows an id."""
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


def _open(
    env_id: str,
    slots: int,
    kind: type[Foreign],
    creator: Any,
    make: Callable[..., Any],
    options: dict[str, Any],
) -> GameArena:
    own = {name: options.pop(name) for name in _ARENA_OPTIONS if name in options}
    success_at = options.pop("success_at", None)
    split = options.pop("split", "train")
    if split not in ("train", "eval"):
        raise UsageError(f"split is {split!r}; expected 'train' or 'eval'")
    takes_split = _takes(creator, "split")
    if takes_split:
        options["split"] = split

    def match() -> Match:
        try:
            with _lock:  # Registries and constructors of others are not made for threads.
                env = make(**options)
        except TypeError as error:
            raise UsageError(f"{env_id} cannot be made with {options}: {error}") from error
        return kind(env, env_id, None if takes_split else split, success_at)

    return GameArena(match, slots, name=env_id, **own)


def _takes(creator: Any, option: str) -> bool:
    try:
        found = signature(creator).parameters.get(option)
    except (TypeError, ValueError):
        return False
    return found is not None and found.kind is not Parameter.VAR_KEYWORD
