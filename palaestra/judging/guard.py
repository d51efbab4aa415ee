"""A guard over an agent at work: a reward model reads what it has done and is about to do, and may hold it back.

A turn whose score lies below a bound is not carried out. Without a verdict nothing is known, so nothing is carried out
either. Left out: what is done with a turn that is held back (`agents.policies.endpoint`,
`palaestra play`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.judge import Judge
from palaestra.episode import Message
from palaestra.errors import ConfigError
from palaestra.judging.prompt import dialogue_prompt
from palaestra.judging.verdict import Verdict, read_verdict


class Guard:
    """Close it: it owns a thread and connections."""

    def __init__(self, url: str, below: float = 0.3, model: str = "rrm", deadline: float = 120.0) -> None:
        """Scores `below` this are too low."""
        if not 0 < below <= 1:
            raise ConfigError(f"a guard holds back turns with a score below {below}; expected a bound from 0 to 1")
        self.below = below
        config = EndpointConfig(url, model, timeout=deadline, patience=deadline)
        self._judge: Judge[Verdict] = Judge([Endpoint(config)], read_verdict, deadline=deadline, thoughts=True)

    async def verdict(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Verdict:
        """On a dialogue that ends with the turn that the agent wants to take. Broken where there is none."""
        return await self._judge.ask(dialogue_prompt(messages, tools))

    def look(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Verdict:
        """The same for plain code."""
        return asyncio.run(self.verdict(messages, tools))

    def check(self) -> None:
        """A UsageError where the reward model cannot be reached."""
        self._judge.check()

    def close(self) -> None:
        """Hang up."""
        self._judge.close()


def held(verdict: Verdict, below: float) -> str:
    """What is told of a turn that is held back."""
    return f"held back: score {verdict.score:g}, below {below:g}. {verdict.critique}".rstrip()
