"""One environment by id, as itself: for stepping by hand, replay and rewards. Many at once are `palaestra.arena`'s."""

from collections.abc import Mapping
from typing import Any

import gymnasium

from palaestra.envs.core.env import ToolEnv
from palaestra.errors import UnknownId, UsageError
from palaestra.registry import registered


def open_env(env_id: str, options: Mapping[str, Any]) -> ToolEnv:
    """The ToolEnv of that id, without Gymnasium's wrappers."""
    try:
        env = gymnasium.make(env_id, disable_env_checker=True, **options).unwrapped
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownId(env_id, registered()) from error
    except TypeError as error:  # From somebody else's class; ours say it themselves.
        raise UsageError(f"{env_id} cannot be made with {dict(options)}: {error.__cause__ or error}") from error
    if not isinstance(env, ToolEnv):
        raise UsageError(f"{env_id} is a {type(env).__name__}; expected a ToolEnv, whose turns and rewards are open")
    return env
