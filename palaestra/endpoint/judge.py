"""A judge: a served model whose answer has a form, which is read strictly; asked again where it cannot be, or given up.

Several servers share the questions (`balanced`). A question that nobody answers readably in time is `Broken`, so what
was to be judged is dropped and counted, never worth 0. Left out: what a judge is asked, and how its answer is read
(`envs.rewards.judge`, `palaestra.judging`).
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.balanced import Balanced, Served
from palaestra.episode import Message
from palaestra.errors import Broken, ConfigError

T = TypeVar("T")
_SHOWN = 2_000
"""Characters of an unreadable answer that a judge is shown again."""
_GRACE = 5.0
"""Seconds for a loop that has died, beyond the deadline."""


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
        patience: float = 0.0,
        thoughts: bool = False,
    ) -> None:
        """`read` takes an answer and raises ValueError, with the reason, for one that is not in its form.

        A question has so many `tries` for a readable answer, and `deadline` seconds with all of them (an environment's
        reward has 60 unless it says otherwise). `rest` and `patience` are `Balanced`'s. With `thoughts` what a server
        gives apart as a model's thinking stands before its answer, in a <think> block.
        """
        if not servers or tries < 1 or max_tokens < 1 or not deadline > 0:
            raise ConfigError(
                f"a judge with {len(servers)} servers, tries={tries}, max_tokens={max_tokens}, deadline={deadline}; "
                "expected at least one server, one try and one token, and a deadline above 0"
            )
        self.counts = Counts()
        self._served = Balanced(servers, rest=rest, patience=patience)
        self._read, self._tries, self._max_tokens = read, tries, max_tokens
        self._deadline, self._thoughts = deadline, thoughts
        self._background = BackgroundLoop("the judge's endpoint")

    async def ask(self, messages: Sequence[Message]) -> T:
        """The verdict, from any event loop. Broken where there is none; UsageError where there never will be."""
        asked = self._within(list(messages))
        return await self._background.outcome(asked, self._deadline + _GRACE, blocking=False)

    def check(self) -> None:
        """A UsageError where no server can be reached."""
        self._background.submit(self._served.check()).result(self._deadline + _GRACE)

    def close(self) -> None:
        """Hang up, and end the thread."""
        self._background.close(self._served.aclose())

    async def _within(self, messages: list[Message]) -> T:
        try:
            async with asyncio.timeout(self._deadline):
                verdict = await self._verdict(messages)
        except Exception as error:
            self.counts.dropped += 1
            if isinstance(error, TimeoutError):
                why = f": {self._served.reason}" * bool(self._served.reason)
                raise Broken(f"the judge gave no readable answer within {self._deadline:g} s{why}") from None
            raise
        finally:
            self.counts.failed = self._served.failed
        self.counts.read += 1
        return verdict

    async def _verdict(self, messages: list[Message]) -> T:
        asked, reason = messages, ""
        for _ in range(self._tries):
            answer = await self._served.complete(asked, max_tokens=self._max_tokens, temperature=0.0)
            text = f"<think>{answer.reasoning}</think>\n" * (self._thoughts and bool(answer.reasoning)) + answer.content
            try:
                if answer.cut and not text:
                    raise Broken("the question is longer than the judge's context, or was withheld from it")
                if answer.cut:
                    raise ValueError(f"it was cut off at {self._max_tokens} tokens")
                return self._read(text)
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


def quoted(text: str) -> str:
    """A stranger's text on one line, as a string of JSON in which no tag, fence or block of ours can be closed."""
    return "".join(
        one if one.isprintable() and one not in "<>`" else _escaped(one) for one in json.dumps(text, ensure_ascii=False)
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
