"""A served model that tools ask: one for all episodes of a process, so that its rate limits and connections are shared.

Episodes are played on many loops, and an endpoint lives on one, so it has one of its own. Left out: what it is asked.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.background import BackgroundLoop
from palaestra.envs.running.lifetime import close_at_exit
from palaestra.errors import Broken, UsageError

T = TypeVar("T")
_BEYOND = 5.0
"""Seconds after a deadline when the loop itself is taken for dead."""


class AskedModel:
    """An endpoint and its loop."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._checked = False
        self._begin()
        close_at_exit(self)

    async def ask(self, question: Callable[[Endpoint], Coroutine[Any, Any, T]], seconds: float) -> T:
        """What the endpoint says. TimeoutError after so many seconds; Broken where it cannot answer.

        Settings that it refuses are Broken as well: `check` was for them, and no agent chose them.
        """
        try:
            work = asyncio.wait_for(question(self._endpoint), seconds)
            return await self._loop.outcome(work, seconds + _BEYOND, blocking=False)
        except UsageError as error:
            raise Broken(str(error)) from error

    async def check(self) -> None:
        """A UsageError where the server cannot be reached or refuses the key; asked until it went well once."""
        if not self._checked:
            seconds = self.config.connect_timeout + 2 * _BEYOND
            await self._loop.outcome(self._endpoint.check(), seconds, blocking=False)
            self._checked = True

    def close(self) -> None:
        """End the connections."""
        self._loop.close(self._endpoint.aclose())

    def forget(self) -> None:
        """In a forked child: the loop is the parent's."""
        self._begin()

    def _begin(self) -> None:
        self._loop, self._endpoint = BackgroundLoop("palaestra-asked-model"), Endpoint(self.config)


@cache
def model_at(config: EndpointConfig) -> AskedModel:
    """The process's one model of this configuration."""
    return AskedModel(config)
