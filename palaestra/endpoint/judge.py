"""A judge: a served model whose answer has a form, which is read strictly; asked again where it cannot be, or given up.

Several servers share the questions: the one with the fewest at work is asked next, and one that failed is left alone
for a while. A question that nobody answers readably in time is `Broken`, so what was to be judged is dropped and
counted, never worth 0. Left out: what a judge is asked, and how its answer is read (`envs.rewards.judge`).
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.reply import Answer
from palaestra.episode import Message
from palaestra.errors import Broken, ConfigError, UsageError

T = TypeVar("T")
_SHOWN = 2_000
"""Characters of an unreadable answer that a judge is shown again."""
_GRACE = 5.0
"""Seconds for a loop that has died, beyond the deadline."""


class Served(Protocol):
    """What answers: an `Endpoint`, or a model of this process with the same two methods."""

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float
    ) -> Coroutine[Any, Any, Answer]:
        """The next turn; `Broken` or `UsageError` where there is none."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Close the connections."""


@dataclass(slots=True)
class Counts:
    """What has been asked so far."""

    read: int = 0
    unreadable: int = 0
    """Answers that were not in the form, each of them asked for again."""
    failed: int = 0
    """Times that a server gave no answer."""
    dropped: int = 0
    """Questions that were given up."""


@dataclass(slots=True)
class _Line:
    """A server, and how busy it is."""

    server: Served
    at_work: int = 0
    rests_until: float = 0.0


class Judge(Generic[T]):
    """Asks for verdicts, on a thread of its own. Close it."""

    def __init__(
        self,
        servers: Sequence[Served],
        read: Callable[[str], T],
        *,
        tries: int = 5,
        max_tokens: int = 1_200,
        deadline: float = 50.0,
        rest: float = 10.0,
    ) -> None:
        """`read` takes an answer and raises ValueError, with the reason, for one that is not in its form.

        A question has so many `tries` for a readable answer, and `deadline` seconds with all of them (an environment's
        reward has 60 unless it says otherwise). A server that failed is not asked for `rest` seconds.
        """
        if not servers or tries < 1 or max_tokens < 1 or not deadline > 0:
            raise ConfigError(
                f"a judge with {len(servers)} servers, tries={tries}, max_tokens={max_tokens}, deadline={deadline}; "
                "expected at least one server, one try and one token, and a deadline above 0"
            )
        self.counts = Counts()
        self._lines = [_Line(server) for server in servers]
        self._read, self._tries, self._max_tokens = read, tries, max_tokens
        self._deadline, self._rest = deadline, rest
        self._background = BackgroundLoop("the judge's endpoint")

    async def ask(self, messages: Sequence[Message]) -> T:
        """The verdict, from any event loop. Broken where there is none; UsageError where there never will be."""
        asked = self._within(list(messages))
        return await self._background.outcome(asked, self._deadline + _GRACE, blocking=False)

    def close(self) -> None:
        """Hang up, and end the thread."""
        self._background.close(self._hang_up())

    async def _within(self, messages: list[Message]) -> T:
        try:
            async with asyncio.timeout(self._deadline):
                verdict = await self._verdict(messages)
        except Exception as error:
            self.counts.dropped += 1
            if isinstance(error, TimeoutError):
                raise Broken(f"the judge gave no readable answer within {self._deadline:g} s") from None
            raise
        self.counts.read += 1
        return verdict

    async def _verdict(self, messages: list[Message]) -> T:
        asked, reason = messages, ""
        for _ in range(self._tries):
            answer = await self._answer(asked)
            try:
                if answer.cut:
                    raise ValueError(f"it was cut off at {self._max_tokens} tokens")
                return self._read(answer.content)
            except ValueError as error:
                self.counts.unreadable += 1
                reason = f"{error}; it was {answer.content[:100]!r}"
                note = (
                    f"That could not be read: {error}. Answer again, in the form that was asked for and nothing else."
                )
                # At temperature 0 the same question would have the same answer.
                said = {"role": "assistant", "content": answer.content[:_SHOWN] or "(nothing)"}
                asked = [*messages, said, {"role": "user", "content": note}]
        raise Broken(f"the judge gave no readable answer in {self._tries} tries: {reason}")

    async def _answer(self, messages: Sequence[Message]) -> Answer:
        """Of the server with the fewest questions; of another, where it fails."""
        left, failures = list(self._lines), list[Exception]()
        while left:
            awake = [line for line in left if line.rests_until <= time.monotonic()] or left
            line = min(awake, key=lambda one: one.at_work)
            left.remove(line)
            line.at_work += 1
            try:
                answer = await line.server.complete(messages, max_tokens=self._max_tokens, temperature=0.0)
            except (Broken, UsageError) as error:
                self.counts.failed += 1
                line.rests_until = time.monotonic() + self._rest
                failures.append(error)
            else:
                line.rests_until = 0.0
                return answer
            finally:
                line.at_work -= 1
        told = "the judge: " + "; ".join(dict.fromkeys(map(str, failures)))
        raise UsageError(told) if all(isinstance(error, UsageError) for error in failures) else Broken(told)

    async def _hang_up(self) -> None:
        for line in self._lines:
            await line.server.aclose()


def quoted(text: str) -> str:
    """A stranger's text on one line, as a string of JSON in which no tag, fence or block of ours can be closed."""
    return "".join(
        one if one.isprintable() and one not in "<>`" else _escaped(one) for one in json.dumps(text, ensure_ascii=False)
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
