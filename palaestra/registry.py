"""Ids: `register` writes Gymnasium's registry, `arena` opens what it holds, vectorized.

Only strings are stored, so that importing palaestra imports no environment, and specs survive `to_json`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium

from palaestra.errors import EnvironmentDefect, UnknownId, UsageError
from palaestra.protocols import Arena

VECTOR_MODULE = "palaestra.envs.core.vector"
Demonstrator = Callable[..., str]
"""`(messages, rng, **habits) -> text`: plays the next turn from what the agent has seen, never from the answer."""

_demonstrators: dict[str, str] = {}


def register(env_id: str, entry_point: str, *, demonstrator: str | None = None, **kwargs: Any) -> None:
    """Register a `ToolEnv` subclass, given as "module:Class", under a Gymnasium id.

    `demonstrator` names a function "module:name" that plays the environment by rule. `kwargs` are
    passed to the class. Registering an id again replaces it.
    """
    for name, value in (("entry_point", entry_point), ("demonstrator", demonstrator)):
        if value is not None and (not isinstance(value, str) or value.count(":") != 1):
            raise UsageError(f"register({env_id!r}): {name} is {value!r}; expected a string 'module:name'")
    gymnasium.registry.pop(env_id, None)
    gymnasium.register(
        env_id,
        entry_point=entry_point,
        # The part after the colon is looked up by Gymnasium with getattr; the vector module answers for any id.
        vector_entry_point=f"{VECTOR_MODULE}:{env_id}",
        kwargs=kwargs,
    )
    _demonstrators.pop(env_id, None)
    if demonstrator is not None:
        _demonstrators[env_id] = demonstrator


def registered() -> list[str]:
    """The ids that `palaestra.register` wrote, sorted."""
    return sorted(
        env_id for env_id, spec in gymnasium.registry.items() if spec.vector_entry_point == f"{VECTOR_MODULE}:{env_id}"
    )


def arena(env_id: str, slots: int, **kwargs: Any) -> Arena:
    """Open `slots` places of an environment, by id: the trainer's only way to environments."""
    try:
        opened = gymnasium.make_vec(env_id, num_envs=slots, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownId(env_id, registered()) from error
    if not isinstance(opened, Arena):
        opened.close()
        raise UsageError(
            f"{env_id} opens a {type(opened).__name__}, which does not play episodes slot by slot; "
            "register a ToolEnv with palaestra.register"
        )
    return opened


def demonstrator(env_id: str) -> Demonstrator:
    """The function that plays this environment by rule."""
    env_id = env_id.rpartition(":")[2]  # Gymnasium's `module:id` names a module to import first.
    if env_id not in _demonstrators:
        if env_id not in gymnasium.registry:
            raise UnknownId(env_id, registered())
        raise UsageError(
            f"{env_id} has no demonstrator, and the tiny agent is raised on one; name it in "
            "palaestra.register(..., demonstrator='module:name'), or train a model of your own with --model"
        )
    module, name = _demonstrators[env_id].split(":")
    try:
        found: Demonstrator = getattr(import_module(module), name)
    except AttributeError as error:
        raise EnvironmentDefect(f"{env_id}: its demonstrator {name!r} is not in {module}") from error
    return found
