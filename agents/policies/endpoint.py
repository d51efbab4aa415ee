"""An engine whose answers come from an OpenAI-compatible server.

The requests of all episodes are sent at once, from an event loop in a separate thread; `poll` returns the answers that
have come. If one request fails, its completion has a fault, so its episode ends BROKEN and gets no reward. `poll`
raises an error that would make every request fail (a wrong key, say). Left out: token ids and log-probs. Such servers
return only text, so the episodes have no token rows, and their turns cannot be trained on as the agent's own samples.
"""

import logging
from collections.abc import Callable, Coroutine
from functools import partial
from hashlib import blake2b
from typing import Any

from palaestra import formats
from palaestra.agents.engines.background_engine import BackgroundEngine
from palaestra.agents.policies.dialogue import to_native, to_text, to_text_only
from palaestra.endpoint import ChatCompletion, Endpoint, EndpointConfig, Totals
from palaestra.errors import Broken, UsageError
from palaestra.judging.guard import Guard, held_back_message
from palaestra.protocols import Completion, Request

log = logging.getLogger("palaestra.agents")
_Ask = Callable[[], Coroutine[Any, Any, ChatCompletion]]
_CHECK_SECONDS = 20.0
"""Seconds for the check of the server beyond the connect timeout; longer than the check's own timeout."""


class EndpointPolicy(BackgroundEngine):
    """Policy that sends each request to a served model. Close it after use: it owns a thread and connections."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        format: str = "hermes",
        native_tools: bool = True,
        seed: int | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`format` is the environment's call format. With `native_tools=False` the system message describes the tools.

        If there is a `seed`, each request gets its own seed, computed from `seed`, the start and the turn. A `guard`
        checks each turn before the environment gets it. If it rejects a turn, the episode is cut off before that turn.
        """
        super().__init__("palaestra-endpoint")
        self._endpoint = Endpoint(config)
        self._form = formats.get(format)
        self._native = native_tools
        self._seed = seed
        self._guard = guard

    def __repr__(self) -> str:
        return f"EndpointPolicy({self._endpoint!r})"

    @property
    def totals(self) -> Totals:
        """Return the number of requests and of tokens, and the cost, so far."""
        return self._endpoint.totals

    @property
    def sampled(self) -> int:
        """Return the number of tokens of all answers, as reported by the server."""
        return self.totals.completion_tokens

    def check(self) -> None:
        """Check the server without asking for tokens. Raise UsageError if it cannot be reached or refuses the key."""
        self._refuse_when_closed()
        seconds = self._endpoint.config.connect_timeout + _CHECK_SECONDS
        self._background.submit(self._endpoint.check()).result(seconds)

    def submit(self, request: Request) -> int:
        """Send the request; return its ticket."""
        tools = request.tools
        if self._native:
            messages = to_native(request.messages, tools, self._form)
        else:
            messages, tools = to_text_only(request.messages, tools, self._form), ()
        self._refuse_when_closed()
        ask = partial(
            self._endpoint.complete,
            messages,
            tools=tools,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=None if self._seed is None else _seed(self._seed, request),
        )
        ticket = next(self._tickets)
        return self._start(ticket, partial(self._complete, ticket, ask, request), request)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._live.clear()
        self._background.close(self._endpoint.aclose())
        if self._guard is not None:
            self._guard.close()

    def _refuse_when_closed(self) -> None:
        if self._background.closed:
            raise UsageError(f"{self!r} is closed; open a new one")

    async def _complete(self, ticket: int, ask: _Ask, request: Request) -> Completion:
        """Return the server's turn after the guard, if there is one, has checked it. Runs on the loop's thread."""
        try:
            answer = await ask()
            text = to_text(answer, request.tools, self._form)
            if self._guard is not None and not answer.cut:
                messages = [*request.start.without_prefix(request.messages), {"role": "assistant", "content": text}]
                verdict = await self._guard.verdict(messages, request.tools)
                if verdict.score < self._guard.below:
                    log.warning("task %s: %s", request.start.task, held_back_message(verdict, self._guard.below))
                    return Completion(ticket, text="", cut=True)
            return Completion(ticket, text=text, cut=answer.cut)
        except Broken as error:
            return Completion(ticket, fault=str(error))


def _seed(seed: int, request: Request) -> int:
    """Return a 31-bit seed for one request, computed from `seed`, the start and the turn."""
    key = f"{seed} {request.start.task} {request.start.seed} {request.turn}".encode()
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "big") >> 1
