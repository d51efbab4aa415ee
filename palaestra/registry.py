"""Register environments by id, and open them: `register` stores a class, `arena` plays many of its episodes at once.

Classes are stored by name. So importing palaestra imports no environment, and `to_json` can write a spec.
"""

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import index
from types import ModuleType
from typing import Any, SupportsIndex

import gymnasium

from palaestra import formats
from palaestra.authorship import authors_line
from palaestra.errors import EnvironmentDefect, PalaestraError, UnknownId, UsageError, did_you_mean
from palaestra.mixture import environments, read_mixture
from palaestra.options import OF_ARENAS, refuse_unknown, services_of
from palaestra.protocols import Arena

ENTRY_POINT = "palaestra.envs.arena.text_env:open_text_env"
VECTOR_ENTRY_POINT = "palaestra.envs.arena.vector:open_vector"
"""Functions that Gymnasium calls. The author's class is one of their options, so that a spec is complete."""
SEATS_MODULE = "palaestra.envs.arena.pettingzoo"
OPENERS_MODULE = "palaestra.envs.arena.openers"
Demonstrator = Callable[..., str]
"""`(messages, rng, **habits) -> text`: plays the next turn from what the agent has seen, never from the answer."""

_demonstrators: dict[str, str] = {}
_games: dict[str, tuple[str, Mapping[str, Any]]] = {}
"""Each game's class as "module:Class", and the options that it was registered with."""

_game_names: dict[str, str] = {}
"""Each game's id as it was registered."""
adapters: dict[str, str] = {}  # Class of each id of `register_adapter`, as "module:Class".


def register(env_id: str, entry_point: str, *, demonstrator: str | None = None, **kwargs: Any) -> None:
    """Register a `ToolEnv` subclass, given as "module:Class", under a Gymnasium id.

    `demonstrator` names a function "module:name" that plays the environment by rule. `kwargs` are
    passed to the class. Registering an id again replaces it.
    """
    _claim("register", env_id, entry_point, demonstrator)
    gymnasium.registry.pop(env_id, None)
    gymnasium.register(
        env_id,
        entry_point=ENTRY_POINT,
        vector_entry_point=VECTOR_ENTRY_POINT,
        kwargs={"entry_point": entry_point, **kwargs},
    )


def register_game(game_id: str, entry_point: str, *, demonstrator: str | None = None, **kwargs: Any) -> None:
    """Register a `Game` subclass, given as "module:Class", with palaestra, and with PettingZoo if it is installed.

    `demonstrator` names a function "module:name" that plays every seat by rule: it reads in the seat's system message
    which seat it is. `kwargs` are passed to the class. Registering an id again replaces it.
    """
    registry_id = _game_id(game_id)
    _claim("register_game", registry_id, entry_point, demonstrator)
    _games[registry_id], _game_names[registry_id] = (entry_point, kwargs), game_id.strip()
    try:
        import pettingzoo  # type: ignore[import-untyped]
    except ImportError:
        return  # Its PettingZoo interface is missing; `palaestra.arena` opens the game all the same.
    if not hasattr(pettingzoo, "register"):
        return  # Before 1.27 it had no registry.
    for kind, registry in (("aec", pettingzoo.aec_registry), ("parallel", pettingzoo.parallel_registry)):
        registry.pop(registry_id, None)
        made_with = {"entry_point": entry_point, **kwargs}
        pettingzoo.register(kind, game_id, entry_point=f"{SEATS_MODULE}:make_{kind}", kwargs=made_with)


def register_adapter(env_id: str, entry_point: str) -> None:
    """Register a Gymnasium class (or, with `register` after it, a Harness) that adapts another package."""
    gymnasium.register(env_id, entry_point=entry_point, disable_env_checker=True)
    adapters[env_id] = entry_point


def as_registered(env_id: str) -> str:
    """Return an id as it was registered: a game's may be written "_v0", where the registry has "-v0"."""
    module, colon, name = env_id.rpartition(":")
    return f"{module}{colon}{_game_names.get(_game_id(name), name)}"


def games() -> list[str]:
    """Return the ids that were registered by `palaestra.register_game`, as they were registered, sorted."""
    return sorted(_game_names[registry_id] for registry_id in _games)


def author_class(env_id: str) -> Any:
    """Return the class that is registered under an id of palaestra. A module before the id is imported first."""
    entry = _ours(env_id)
    if entry is None:
        raise UnknownId(env_id, [*registered(), *games()])
    return entry[0]


def is_game(env_id: str) -> bool:
    """Return whether an id was registered by `palaestra.register_game`. A module before the id is ignored."""
    return _game_id(env_id.rpartition(":")[2]) in _games


def registered() -> list[str]:
    """Return the ids that were registered by `palaestra.register`, sorted."""
    keys = (key for key, spec in gymnasium.registry.items() if spec.entry_point == ENTRY_POINT)
    return sorted(set(keys) - set(adapters))


def registered_author(env_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the class of an id as "module:Class", and its registered options; None if the id is not palaestra's."""
    module, _, name = env_id.rpartition(":")
    if module:
        import_author(module)
    if (game := _games.get(_game_id(name))) is not None:
        return game
    spec = gymnasium.registry.get(name)
    if spec is None or spec.entry_point != ENTRY_POINT:
        return None
    options = dict(spec.kwargs)
    return options.pop("entry_point"), options


def arena(env_id: str, slots: int, **kwargs: Any) -> Arena:
    """Open an arena that plays up to `slots` episodes of an environment at once. Trainers use only this function.

    In a game each seat takes a slot, and `Start.seat` names the seat. With `seat=NAME` only that seat is played, and
    demonstrators play the others. Any other Gymnasium or PettingZoo environment that speaks text is adapted. With
    `workers=4` four Ray actors play, in the cluster at `ray_address=` or in a new one on this machine. In a mixture,
    `ID=WEIGHT,ID=WEIGHT`, each slot can play each environment, and `Start.env` names it (`palaestra.mixture`).
    """
    if not isinstance(slots, SupportsIndex):
        raise UsageError(f"arena({env_id!r}, {slots!r}): expected how many episodes to play at once, such as 8")
    slots = index(slots)
    if slots < 1:
        raise UsageError(f"arena({env_id!r}, {slots}): expected at least 1, how many episodes to play at once")
    check_options(env_id, kwargs)
    opened: Arena = load_author(f"{OPENERS_MODULE}:open_arena", "palaestra's opener")(env_id, slots, **kwargs)
    return opened


def demonstrator(env_id: str) -> Demonstrator:
    """Return the function that plays this environment by rule."""
    env_id = env_id.rpartition(":")[2]  # Gymnasium's `module:id` names a module to import first.
    env_id = _game_id(env_id) if _game_id(env_id) in _games else env_id
    if env_id not in _demonstrators:
        if env_id not in gymnasium.registry and env_id not in _games:
            raise UnknownId(env_id, [*registered(), *games()])
        raise UsageError(
            f"{env_id} has no demonstrator, which plays by rule for the tiny agent and for the other seats of a game; "
            "name it in palaestra.register(..., demonstrator='module:name'), or train a model of your own with --model"
        )
    function: Demonstrator = load_author(_demonstrators[env_id], f"{env_id}: its demonstrator")
    return function


def demonstrators(env_id: str) -> Demonstrator | dict[str, Demonstrator]:
    """Return the function that plays an environment by rule; for a mixture, the function of each, by `Start.env`."""
    if read_mixture(env_id) is None:
        return demonstrator(env_id)
    return {name: demonstrator(member_id) for name, (member_id, _) in environments(env_id, {}).items()}


def format_read(env_id: str, options: Mapping[str, Any]) -> str:
    """Return the format in which an environment reads calls. Raise a UsageError if a mixture reads them in several."""
    members = environments(env_id, options)
    read = {name: chosen_format(*member) or formats.DEFAULT for name, member in members.items()}
    if len(set(read.values())) > 1:
        formats_by_name = ", ".join(f"{name} {format}" for name, format in read.items())
        raise UsageError(
            f"calls are read in different formats ({formats_by_name}), and this agent writes one; choose it for all, "
            f"as in --env-options format={formats.DEFAULT}"
        )
    return next(iter(read.values()))


def chosen_format(env_id: str, options: Mapping[str, Any]) -> str | None:
    """Return the call format that was chosen for an environment: in these options, at its registration or in its class.

    None if none was chosen: then it reads `formats.DEFAULT`, and a caller that knows the agent may choose a better one.
    """
    author_entry = _ours(env_id)
    if author_entry is None:
        return None
    author, registered_with = author_entry
    chosen = {**registered_with, **options}.get("format")
    if chosen is not None:
        return formats.validate(chosen)
    declared = [base for base in author.__mro__ if "format" in vars(base)]
    # The last is the base that all environments, or games, have in common.
    return str(author.format) if len(declared) > 1 else None


def check_options(env_id: str, names: Iterable[str]) -> None:
    """Raise a UsageError for options that an environment of palaestra does not take. Games, and environments of other
    people, check their options when they are created.
    """
    if (mixture := read_mixture(env_id)) is not None:
        options = dict.fromkeys(names)
        mixture.check(options)
        for member_id, takes in environments(env_id, options).values():
            check_options(member_id, takes)
        return
    author_entry = None if is_game(env_id) else _ours(env_id)
    if author_entry is not None:
        refuse_unknown(env_id, author_entry[0], [name for name in names if name not in OF_ARENAS])


def services(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that only a command line may decide, by the rule of `palaestra.options`."""
    names: set[str] = set()
    for member_id, member_options in environments(env_id, options).values():
        adapter = adapters.get(member_id.rpartition(":")[2])
        creator, registered_with = _ours(member_id) or (adapter and load_author(adapter, member_id), {})
        names |= services_of(creator, registered_with, member_options).keys()
    return {key: value for key, value in options.items() if {key, key.rpartition(".")[2]} & names}


def require_loaded(env_id: str, where: str) -> None:
    """Raise a UsageError if the module in an id from a file is not loaded: a file must not decide what is imported."""
    for member_id, _ in environments(env_id, {}).values():
        module = member_id.rpartition(":")[0]
        if module and module not in sys.modules:
            raise UsageError(
                f"{where} names the module {module!r} in {member_id!r}, and what a file names is not imported; if you "
                f"trust that module, add --allow-code {module}"
            )


def reads_calls(env_id: str) -> bool:
    """Return whether an environment is palaestra's and so has the option `format`. Others get text and parse it."""
    return _ours(env_id) is not None


def _ours(env_id: str) -> tuple[Any, Mapping[str, Any]] | None:
    """Return the class of an id of palaestra and the options of its registration; None for any other id."""
    entry = registered_author(env_id)
    return None if entry is None else (load_author(entry[0], f"{env_id}: its class"), entry[1])


def _game_id(game_id: str) -> str:
    """Return a game's id with "-v" for "_v": PettingZoo accepts solver_critic_v0 and stores solver_critic-v0."""
    return re.sub(r"_v(?=\d+$)", "-v", game_id.strip())


def _claim(verb: str, env_id: str, entry_point: Any, demonstrator: Any) -> None:
    """Raise a UsageError for a value that is not "module:name", and store the demonstrator of the id."""
    for name, value in (("entry_point", entry_point), ("demonstrator", demonstrator)):
        if value is not None and (not isinstance(value, str) or value.count(":") != 1):
            raise UsageError(f"{verb}({env_id!r}): {name} is {value!r}; expected a string 'module:name'")
    _demonstrators.pop(env_id, None)
    if demonstrator is not None:
        _demonstrators[env_id] = demonstrator


def load_author(entry_point: str, what: str) -> Any:
    """Return the object that an author registered as "module:name". `what` describes it in errors."""
    module_name, _, name = entry_point.partition(":")
    try:
        module = import_author(module_name)
    except UsageError as error:
        raise EnvironmentDefect(f"{what} {name!r} cannot be loaded: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        file = module.__file__ or module_name
        raise EnvironmentDefect(f"{what} {name!r} is not in {file}{did_you_mean(name, dir(module))}") from error


def import_author(name: str) -> ModuleType:
    """Import an author's module. An error in it raises an EnvironmentDefect with its file and line."""
    if not all(map(str.isidentifier, name.split("."))):
        raise UsageError(f"{name!r} is no name of a module; expected one such as my_environment")
    try:
        return import_module(name)
    except PalaestraError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {error.name!r} in this folder or among those installed") from error
        raise EnvironmentDefect(f"{_place(error)}: {name} needs {error.name!r}, which is not installed") from error
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise EnvironmentDefect(f"{error.filename}, line {error.lineno}: {error.msg}{line}") from error
    except (Exception, SystemExit) as error:  # An author's module may do anything as it is imported.
        description = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise EnvironmentDefect(f"{_place(error)}: {description} (while {name} was imported)") from error


def _place(error: BaseException) -> str:
    """Return the file and line of the author's code that raised an error; if there is none, the innermost line."""
    line = authors_line(error)
    if line is not None:
        return line.place
    step = traceback.extract_tb(error.__traceback__)[-1]
    return f"{step.filename}, line {step.lineno}"
