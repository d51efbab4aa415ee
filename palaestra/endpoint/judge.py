"""A judge: a served model whose answers are parsed strictly. An answer that cannot be parsed is requested again.

Several servers share the questions (`balanced`). A question without a readable answer in time raises `Broken`: its
episode is dropped and counted, never scored 0. Left out: the questions, and how an answer is parsed
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
"""Characters of an unreadable answer that are sent back to the judge."""
_GRACE = 5.0
"""Seconds beyond the deadline after which the event loop counts as dead."""


@dataclass(slots=True)
class JudgeCounts:
    """Counts of the questions so far."""

    read: int = 0
    unreadable: int = 0
    """Number of answers that could not be parsed."""
    failed: int = 0
    """Number of times that a server gave no answer."""
    dropped: int = 0
    """Number of questions that were given up."""


class JudgeClient(Generic[T]):
    """Client that requests verdicts, on a thread of its own. Close it after use."""

    def __init__(
        self,
        servers: Sequence[Served],
        read: Callable[[str], T],
        *,
        tries: int = 5,
        max_tokens: int = 1_200,
        deadline: float = 50.0,
        check_interval: float = 10.0,
        patience: float = 0.0,
        thoughts: bool = False,
    ) -> None:
        """`read` parses an answer and raises ValueError, with the reason, for one that is not in its form.

        A question has `tries` tries for a readable answer, and `deadline` seconds for all of them (an environment's
        reward has 60 by default). `check_interval` and `patience` are those of `Balanced`. With `thoughts` the thinking
        that a server reports separately is put before the answer, in a <think> block.
        """
        if not servers or tries < 1 or max_tokens < 1 or not deadline > 0:
            raise ConfigError(
                f"a judge with {len(servers)} servers, tries={tries}, max_tokens={max_tokens}, deadline={deadline}; "
                "expected at least one server, one try and one token, and a deadline above 0"
            )
        self.counts = JudgeCounts()
        self._served = Balanced(servers, check_interval=check_interval, patience=patience)
        self._read, self._tries, self._max_tokens = read, tries, max_tokens
        self._deadline, self._thoughts = deadline, thoughts
        self._background = BackgroundLoop("the judge's endpoint")

    async def ask(self, messages: Sequence[Message]) -> T:
        """Return the verdict, on any event loop. Raise Broken if there is none, UsageError if none is possible."""
        work = self._within(list(messages))
        return await self._background.outcome(work, self._deadline + _GRACE, blocking=False)

    def check(self) -> None:
        """Raise a UsageError if no server can be reached."""
        self._background.submit(self._served.check()).result(self._deadline + _GRACE)

    def close(self) -> None:
        """Close the connections and end the thread."""
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
        dialogue, reason = messages, ""
        for _ in range(self._tries):
            answer = await self._served.complete(dialogue, max_tokens=self._max_tokens, temperature=0.0)
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
                answered = {"role": "assistant", "content": answer.content[:_SHOWN] or "(nothing)"}
                dialogue = [*messages, answered, {"role": "user", "content": note}]
        raise Broken(f"the judge gave no readable answer in {self._tries} tries: {reason}")


def quoted(text: str) -> str:
    """Return untrusted text on one line, as a JSON string that cannot close any tag, fence or block of a prompt."""
    return "".join(
        letter if letter.isprintable() and letter not in "<>`" else _escaped(letter)
        for letter in json.dumps(text, ensure_ascii=False)
    )


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
