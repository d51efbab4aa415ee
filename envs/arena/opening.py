"""Functions that create an author's object, its Spec and its Machine, from an id, or from a class and its options.

Left out: many episodes at once (`openers`), and external environments (`foreign`).
"""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from palaestra import formats
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.spec import Spec
from palaestra.envs.data.rows import require_file
from palaestra.envs.data.task_files import load_tasks
from palaestra.envs.harness.author import Harness
from palaestra.envs.harness.machine import HarnessMachine
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UnknownId, UsageError
from palaestra.options import FORMAT, OF_ARENAS, refuse_mistyped, refuse_unknown
from palaestra.registry import as_registered, games, is_game, load_author, registered, registered_author


def make_author(entry_point: str, options: Mapping[str, Any], env_id: str = "") -> ToolEnv:
    """Create the object of a registered class. The option `format` works even if its constructor does not take it."""
    author_class = load_author(entry_point, f"{env_id or entry_point}: its class")
    if not (isinstance(author_class, type) and issubclass(author_class, ToolEnv)):
        raise EnvironmentDefect(
            f"{env_id or 'an id'} is registered as {entry_point!r}, which is no subclass of ToolEnv; "
            "palaestra.register takes ToolEnv classes, gymnasium.register and pettingzoo.register all others"
        )
    takes = signature(author_class)
    accepted = {name: value for name, value in options.items() if name != FORMAT or FORMAT in takes.parameters}
    try:
        takes.bind(**accepted)
    except TypeError as error:
        refuse_unknown(env_id or author_class.__name__, author_class, accepted)
        raise UsageError(f"{author_class.__name__}: {error}") from error
    refuse_mistyped(env_id or author_class.__name__, author_class, accepted)
    author = author_class(**accepted)
    if not author.seats:
        require_no_game(env_id, author_class)
    if options.get(FORMAT) is not None:
        author.format = formats.validate(options[FORMAT])
    return author


def require_no_game(env_id: str, author_class: type) -> None:
    """Raise an error if a class without seats is registered as a game."""
    if is_game(env_id):
        raise EnvironmentDefect(
            f"{as_registered(env_id)} is registered as a game, but its class {author_class.__name__} has no seats: "
            "use palaestra.register, or subclass Game and set seats"
        )


def tasks_of(author: ToolEnv) -> Sequence[Task]:
    """Return the tasks that an author's object plays: those of the file named by `tasks`, or its own."""
    path = author._tasks_file
    if path is None:
        return author.task_set(author.split)
    tasks = author.read_tasks(path, author.split)
    return load_tasks(path, author.split) if tasks is None else tasks


def spec_of(author: ToolEnv, name: str = "") -> Spec:
    """Return the constants that all machines of this object share."""
    require_tasks_file(author)
    return Spec(author, tasks_of, name)


def machine_of(spec: Spec) -> Machine:
    """Return a machine that plays the author's object of this Spec."""
    return HarnessMachine(spec) if isinstance(spec.author, Harness) else Machine(spec)


def require_tasks_file(author: ToolEnv) -> None:
    """Raise an error if the author's object names a file of tasks that does not exist."""
    if author._tasks_file is not None:
        require_file(author._tasks_file)


def open_machine(env_id: str, options: Mapping[str, Any]) -> Machine:
    """Return a machine for an id of `palaestra.register` or `palaestra.register_game`."""
    entry = registered_author(env_id)
    if entry is None:
        raise UnknownId(env_id, [*registered(), *games()])
    entry_point, registered_with = entry
    author_options = {name: value for name, value in {**registered_with, **options}.items() if name not in OF_ARENAS}
    name = as_registered(env_id.rpartition(":")[2])
    return machine_of(spec_of(make_author(entry_point, author_options, env_id), name))
