"""From an id, or a class and its options, to an author's object, its Spec, and a machine that plays it.

Left out: many episodes at once (`openers`), and environments that others wrote (`foreign`).
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
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UnknownId, UsageError
from palaestra.options import FORMAT, OF_ARENAS, refuse_unknown
from palaestra.registry import games, load_author, registered, registered_author


def made(entry_point: str, options: Mapping[str, Any], env_id: str = "") -> ToolEnv:
    """The object of a registered class. The option `format` is ours, whatever its constructor takes."""
    found = load_author(entry_point, f"{env_id or entry_point}: its class")
    if not (isinstance(found, type) and issubclass(found, ToolEnv)):
        raise EnvironmentDefect(
            f"{env_id or 'an id'} is registered as {entry_point!r}, which is no subclass of ToolEnv; "
            "palaestra.register takes ToolEnv classes, gymnasium.register and pettingzoo.register all others"
        )
    takes = signature(found)
    own = {name: value for name, value in options.items() if name != FORMAT or FORMAT in takes.parameters}
    try:
        takes.bind(**own)
    except TypeError as error:
        refuse_unknown(env_id or found.__name__, found, own)
        raise UsageError(f"{found.__name__}: {error}") from error
    author = found(**own)
    if options.get(FORMAT) is not None:
        author.format = formats.known(options[FORMAT])
    return author


def tasks_of(author: ToolEnv) -> Sequence[Task]:
    """The problems that an author's object plays: of the file that `tasks` named, or its own."""
    path = author._tasks_file
    if path is None:
        return author.task_set(author.split)
    found = author.read_tasks(path, author.split)
    return load_tasks(path, author.split) if found is None else found


def spec_of(author: ToolEnv, name: str = "") -> Spec:
    """What all machines that play this object share."""
    require_tasks_file(author)
    return Spec(author, tasks_of, name)


def require_tasks_file(author: ToolEnv) -> None:
    """A file of tasks that is not there is an error before it is read."""
    if author._tasks_file is not None:
        require_file(author._tasks_file)


def open_machine(env_id: str, options: Mapping[str, Any]) -> Machine:
    """A machine for an environment or game of ours, by id."""
    found = registered_author(env_id)
    if found is None:
        raise UnknownId(env_id, [*registered(), *games()])
    entry_point, registered_with = found
    given = {name: value for name, value in {**registered_with, **options}.items() if name not in OF_ARENAS}
    return Machine(spec_of(made(entry_point, given, env_id), env_id.rpartition(":")[2]))
