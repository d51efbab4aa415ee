"""An engine whose answers come from an OpenAI-compatible server.

The requests of all episodes are out at once, on an event loop in a thread of its own; `poll` hands over what has come
in. A request that could not be answered is a completion with a fault, so its episode ends BROKEN and gets no reward;
an error that every request would meet (a wrong key) is raised by `poll`. Left out: token ids and log-probs. Such
servers give text, so the episodes have no rows, and nothing can be trained on them as if it had been sampled here.
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
    """Answers each request through a served model. Close it: it owns a thread and its connections."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        format: str = "hermes",
        native_tools: bool = True,
        seed: int | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`format` is the environment's call format. `native_tools=False` describes the tools in the system message.

        With a `seed` every request carries one of its own, made of it, the start and the turn. A `guard` reads each
        turn before the environment does: one that it holds back ends its episode, cut off without that turn.
        """
        super().__init__("palaestra-endpoint")
        self._endpoint = Endpoint(config)
        self._form = formats.get(format)
        self._native = native_tools
        self._seed = seed
        self._guard = guard
        self.held_back = 0
        """Count of episodes that the guard has ended."""

    def __repr__(self) -> str:
        return f"EndpointPolicy({self._endpoint!r})"

    @property
    def totals(self) -> Totals:
        """Return the counts of requests and tokens, and the cost, so far."""
        return self._endpoint.totals

    @property
    def sampled(self) -> int:
        """Return the count of tokens of all answers, as far as the server reports them."""
        return self.totals.completion_tokens

    def check(self) -> None:
        """Check the server at no cost; raise UsageError if it cannot be reached or refuses the key."""
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
        """Return the server's turn, read by the guard first if there is one. Runs on the thread of the loop."""
        try:
            answer = await ask()
            text = to_text(answer, request.tools, self._form)
            if self._guard is not None and not answer.cut:
                messages = [*request.start.without_prefix(request.messages), {"role": "assistant", "content": text}]
                verdict = await self._guard.verdict(messages, request.tools)
                if verdict.score < self._guard.below:
                    self.held_back += 1
                    log.warning("task %s: %s", request.start.task, held_back_message(verdict, self._guard.below))
                    return Completion(ticket, text="", cut=True)
            return Completion(ticket, text=text, cut=answer.cut)
        except Broken as error:
            return Completion(ticket, fault=str(error))


def _seed(seed: int, request: Request) -> int:
    """Return a 31-bit seed made of the seed, the start and the turn."""
    key = f"{seed} {request.start.task} {request.start.seed} {request.turn}".encode()
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "big") >> 1
