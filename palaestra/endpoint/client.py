"""Client of `/chat/completions` and `/audio/transcriptions`: a call returns a whole answer or raises a clear error.

No server can hang a run or fill the memory: every try has a timeout that slow bytes do not extend, and every body has a
maximum size. A question fails in two ways: with `UsageError` if all would fail alike (a wrong key, model or address),
so the run should stop, and with `Broken` if this one could not be answered after retries for `patience` seconds. A
refusal that may mean either (400, 403, 404) is a `UsageError` until the server has answered something, and `Broken`
from then on. The key is sent to the server and shown nowhere: it is removed from everything that the server returns,
answers too. Left out: streaming, since only a whole turn can be used.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeVar

from palaestra.endpoint.config import PATH, EndpointConfig, Secret, address_of
from palaestra.endpoint.http import HttpClient, Response, RetryableError
from palaestra.endpoint.pace import AtOnce, Pace
from palaestra.endpoint.reply import (
    ChatCompletion,
    Problem,
    Totals,
    UnreadableReply,
    Usage,
    parse,
    problem_in_page,
    problem_of,
    read_answer,
    read_transcript,
)
from palaestra.episode import Message
from palaestra.errors import Broken, UsageError

T = TypeVar("T")
log = logging.getLogger("palaestra.endpoint")

SPEECH_PATH = "/audio/transcriptions"
COSTLY_TRIES = 3
"""Maximum tries of a question that the server accepts and answers wrongly or not at all: each may be billed."""
_AGAIN = {408, 409, 425, 429}
_QUIET = 30.0
"""Minimum seconds between two warnings."""
_EXPECTED = "expected a base URL such as http://localhost:8000/v1"


class _Refusal(NamedTuple):
    """An error that a server returned in place of an answer."""

    status: int
    problem: Problem
    wait: float | None


class Endpoint:
    """A served model. All calls, and closing it, must run on the event loop of the first call."""

    def __init__(self, config: EndpointConfig) -> None:
        self.config = config
        self.totals = Totals(at_once=config.max_concurrent)
        self._address = address_of(config.base_url)
        self._secret = Secret(config.api_key_env)
        self._http = HttpClient(
            self._address,
            self._secret,
            connect_seconds=config.connect_timeout,
            keep=config.max_concurrent,
            purpose="an OpenAI-compatible endpoint",
            size_option="max_body_bytes",
        )
        self._shown = self._http.redacted
        self._at_once = AtOnce(config.max_concurrent)
        self._requests, self._tokens = Pace(config.requests_per_minute), Pace(config.tokens_per_minute)
        self._limit_name = "max_tokens"
        self._last_answer = self._quiet_until = 0.0
        self._silent = False
        """True if a question was given up and none was answered since: other questions then do not retry as long."""

    @property
    def trouble(self) -> str:
        """Reason why the last try failed; empty if it succeeded."""
        return self._http.trouble

    def __repr__(self) -> str:
        return f"Endpoint({self.config.model!r} at {self._address})"

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> ChatCompletion:
        """Return the next turn of a dialogue. Raise UsageError or Broken as the module's docstring says."""
        request: dict[str, Any] = {"model": self.config.model, "messages": list(messages)}
        if tools:
            request["tools"] = list(tools)
        optional = {self._limit_name: max_tokens, "temperature": temperature, "seed": seed}
        request |= {name: value for name, value in optional.items() if value is not None}
        answer = await self._patiently(lambda: self._try(request, max_tokens))
        self.totals.add(answer.usage)
        return answer

    async def transcribe(self, sound: bytes, kind: str) -> str:
        """Return the transcript of a recording from `/audio/transcriptions`. `kind` is its format, such as wav."""
        import httpx

        fields = {"model": self.config.model, "response_format": "json", "temperature": "0"}
        file = (f"sound.{kind}", sound, f"audio/{kind}")  # Servers recognize the format by the file name.
        form = httpx.Request("POST", self._address, data=fields, files={"file": file})
        body, headers = form.read(), {"Content-Type": form.headers["Content-Type"]}

        async def attempt() -> str:
            text = await self._exchange(SPEECH_PATH, body, 0, read_transcript, headers)
            return self._judge(*text) if isinstance(text, _Refusal) else self._secret.hide(text)

        text = await self._patiently(attempt)
        self.totals.add(Usage(0, len(text) // 4, estimated=True))
        return text

    async def check(self) -> None:
        """Send a free request. Raise a UsageError if the server is unreachable, refuses the key or sends a web page."""
        try:
            async with asyncio.timeout(min(self.config.timeout, self.config.connect_timeout + 5.0)):
                response = await self._send("/models", None)
        except TimeoutError:  # The server may be busy, and still answer a question.
            return
        except RetryableError as again:
            raise UsageError(f"{self._address} cannot be reached: {again}; is the server running there?") from None
        if response.status == 401:
            raise UsageError(self._refusal(response.status, problem_in_page(response.body)))
        if response.status == 200 and response.body.lstrip()[:1] == b"<":
            page = self._shown(response.body[:200].decode("utf-8", "replace"))
            raise UsageError(f"{self._address}/models answered a page, {page}: no such server is there; {_EXPECTED}")

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Private methods.

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` until it returns, or raises a refusal, or `patience` is over. Return its outcome."""

        async def in_place() -> T:
            try:
                self.config.refuse_spent(self.totals)
                return await attempt()
            finally:
                self._at_once.give()

        try:
            outcome = await self._retried(in_place)
        except Broken:
            self.totals.unanswered += 1
            raise
        self._at_once.answered()
        self.totals.at_once = int(self._at_once.limit)
        self._last_answer, self._silent = time.monotonic(), False
        return outcome

    async def _retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        costly, failed_at = 0, 0.0

        def hopeless(again: RetryableError, over: bool) -> bool:
            nonlocal costly, failed_at
            if not failed_at:
                failed_at = time.monotonic()
                self._warn(again)
            costly += again.costly
            self._silent = self._silent or (over and self._last_answer < failed_at)
            return costly >= COSTLY_TRIES or self._silent

        patience, backoff, place = self.config.patience, self.config.backoff, self._at_once.take
        return await self._http.retried(attempt, patience, backoff, hopeless=hopeless, place=place)

    def _warn(self, again: RetryableError) -> None:
        """Log a warning about a failed try, at most once every `_QUIET` seconds."""
        if not self._silent and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET
            patience = self.config.patience
            for_long = f"; trying again for {patience:g} s" if patience else ""
            log.warning("%s: %s%s", self._address, again, for_long)

    async def _try(self, request: dict[str, Any], max_tokens: int | None) -> ChatCompletion:
        """Send the question once, as soon as the rate limits allow. Return the answer or raise the failure."""
        body = json.dumps(request, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")

        def read(document: Mapping[str, Any]) -> ChatCompletion:
            return read_answer(document, max_tokens=max_tokens, sent_bytes=len(body))

        answer = await self._exchange(PATH, body, max_tokens or 0, read)
        if not isinstance(answer, _Refusal):
            return self._priced(answer)
        status, problem, wait = answer
        newer = status == 400 and problem.parameter == "max_tokens" and "max_completion_tokens" in problem.message
        if newer and "max_tokens" in request:  # Newer models of OpenAI know the limit by its newer name only.
            self._limit_name = "max_completion_tokens"
            request[self._limit_name] = request.pop("max_tokens")
            return await self._try(request, max_tokens)
        if self.totals.answers and problem.is_length and status in (400, 413, 422):
            return ChatCompletion("", cut=True)
        return self._judge(status, problem, wait)

    async def _exchange(
        self,
        path: str,
        body: bytes,
        tokens: int,
        read: Callable[[Mapping[str, Any]], T],
        headers: Mapping[str, str] | None = None,
    ) -> "T | _Refusal":
        """Send one request within the rate limits. Return the result of `read` on the response, or the refusal."""
        await self._requests.take(1)
        booked = await self._tokens.take((len(body) / 4 if path == PATH else 0) + tokens)
        self.totals.tries += 1
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await self._send(path, body, headers)
        except TimeoutError:
            raise RetryableError(f"no whole answer within {self.config.timeout:g} s", costly=True) from None
        status, data, elsewhere = response.status, response.body, response.headers.get("location", "")
        if 300 <= status < 400:
            raise self._refused(
                f"{self._address} redirects to {self._shown(elsewhere)!r}, which is not followed, "
                "since the key would go with it; pass the address that it really has"
            )
        try:
            problem = problem_in_page(data) if status >= 400 else problem_of(document := parse(data))
            if problem is None:
                answer = read(document)
                if isinstance(answer, ChatCompletion):
                    booked[1] = answer.usage.prompt_tokens + answer.usage.completion_tokens
                return answer
        except UnreadableReply as error:
            if not self.totals.answers and data.lstrip()[:1] == b"<":
                raise UsageError(
                    f"{self._address}{path} answered {self._shown(str(error))}: no such server is there; {_EXPECTED}"
                ) from None
            raise RetryableError(f"it answered {self._shown(str(error))}", costly=True) from None
        return _Refusal(problem.status or status, problem, response.wait)

    def _judge(self, status: int, problem: Problem, wait: float | None) -> NoReturn:
        """Raise the error for a refusal: to try again, to stop the run, or to give up this question."""
        quota = problem.code == "insufficient_quota"
        if not quota and (status == 429 or wait is not None):
            self.totals.refused_for_rate += 1
            self._at_once.refused(wait)
            self.totals.at_once = int(self._at_once.limit)
        if not quota and (status in _AGAIN or status >= 500 or status < 400):
            reason = f"it answered {status}: {self._shown(problem.message)}"
            raise RetryableError(reason, wait, costly=status < 400)
        raise self._refused(self._refusal(status, problem), always=quota or status in (401, 402))

    def _refused(self, reason: str, *, always: bool = False) -> UsageError | Broken:
        """Return a UsageError if every question would fail like this (assumed until one is answered), else `Broken`."""
        return UsageError(reason) if always or not self.totals.answers else Broken(reason)

    def _refusal(self, status: int, problem: Problem) -> str:
        variable = self.config.api_key_env
        hints = {
            401: f"; the key was taken from {variable}"
            if self._secret
            else f"; no key was sent ({variable!r} is empty)",
            404: f"; {_EXPECTED}, and a model that is served there, found {self.config.model!r}",
        }
        return f"{self._address} refused with {status}: {self._shown(problem.message)}{hints.get(status, '')}"

    def _priced(self, answer: ChatCompletion) -> ChatCompletion:
        usage = answer.usage
        cost = (usage.prompt_tokens * self.config.price_in + usage.completion_tokens * self.config.price_out) / 1e6
        hide = self._secret.hide
        return replace(
            answer,
            content=hide(answer.content),
            reasoning=hide(answer.reasoning),
            calls=tuple(replace(call, name=hide(call.name), arguments=hide(call.arguments)) for call in answer.calls),
            usage=replace(usage, cost=cost),
        )

    async def _send(self, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> Response:
        """Send a request and return its response without the key."""
        try:
            response = await self._http.send(path, body, self.config.max_body_bytes, headers)
        except RetryableError as again:
            if again.tls and not self.totals.answers:
                raise UsageError(
                    f"{self._address}: no secure connection: {again}; check the address, and its certificate "
                    "(SSL_CERT_FILE names further authorities)"
                ) from None
            raise
        return response._replace(body=self._secret.hide_bytes(response.body))
