"""A served model for tools, shared by all episodes of a process, so that they share its rate limits and connections.

Episodes run on many event loops, but an endpoint works on only one, so it has its own loop. Left out: the questions.
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
_GRACE_SECONDS = 5.0
"""Seconds after a timeout at which the loop itself is taken for dead."""


class ToolModel:
    """An endpoint and its event loop."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self._checked = False
        self._begin()
        close_at_exit(self)

    async def ask(self, question: Callable[[Endpoint], Coroutine[Any, Any, T]], seconds: float) -> T:
        """Return the answer of the endpoint. Raise TimeoutError after `seconds`, Broken if the endpoint cannot answer.

        If the endpoint refuses the settings, this is Broken too: `check` accepted them, and no agent chose them.
        """
        try:
            work = asyncio.wait_for(question(self._endpoint), seconds)
            return await self._loop.outcome(work, seconds + _GRACE_SECONDS, blocking=False)
        except UsageError as error:
            raise Broken(str(error)) from error

    @property
    def trouble(self) -> str:
        """Return why the last request failed; "" if it succeeded."""
        return self._endpoint.trouble

    async def check(self) -> None:
        """Raise UsageError if the server cannot be reached or refuses the key. After one success, do nothing."""
        if not self._checked:
            seconds = self.config.connect_timeout + 2 * _GRACE_SECONDS
            await self._loop.outcome(self._endpoint.check(), seconds, blocking=False)
            self._checked = True

    def close(self) -> None:
        """Close the connections."""
        self._loop.close(self._endpoint.aclose())

    def forget(self) -> None:
        """Make a new loop and endpoint in a forked child process, because the old loop belongs to the parent."""
        self._begin()

    def _begin(self) -> None:
        self._loop, self._endpoint = BackgroundLoop("palaestra-tool-model"), Endpoint(self.config)


@cache
def model_at(config: EndpointConfig) -> ToolModel:
    """Return the model of this configuration; each process has one."""
    return ToolModel(config)
