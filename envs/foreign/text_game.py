"""What the adapters share: text as space, packages that may be missing, and games that draw from global generators.

GEM and TextArena seed and use the generators of Python's `random` and of numpy, of which a process has one each. In an
arena many of their episodes run at once, so each episode gets the state of these generators that is its own, for the
time of each reset and step; these run one after another. Left out: the packages, a module each.
"""

import logging
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from palaestra.envs.core.space import TEXT
from palaestra.errors import Broken, MissingExtra

TURN_SECONDS = 30.0
"""Seconds to wait for the step of another episode that uses the global generators."""
_generators = threading.Lock()


class TextGame(gymnasium.Env[str, str]):
    """Base of the adapters: observations and actions are text."""

    observation_space = TEXT
    action_space = TEXT
    _state: tuple[Any, Any] | None = None
    """State of both generators in this episode; None before the first one."""

    @contextmanager
    def own_generators(self) -> Iterator[None]:
        """Let the global generators go on from this episode's state in the block, and restore them after it."""
        if not _generators.acquire(timeout=TURN_SECONDS):
            raise Broken(f"a step of another episode holds the global random generators for more than {TURN_SECONDS} s")
        outer = random.getstate(), np.random.get_state()
        try:
            if self._state is not None:
                random.setstate(self._state[0])
                np.random.set_state(self._state[1])
            yield
        finally:
            self._state = random.getstate(), np.random.get_state()
            random.setstate(outer[0])
            np.random.set_state(outer[1])
            _generators.release()


@contextmanager
def installed(package: str, env_id: str) -> Iterator[None]:
    """Raise a MissingExtra for a library that the imports in the block lack, and keep the log's level as it was."""
    level, handlers = logging.root.level, list(logging.root.handlers)
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or package, "", env_id, f"pip install {package}") from error
    finally:
        logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
