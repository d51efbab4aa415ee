"""A guard of a running agent: a reward model reads the dialogue and the agent's next turn, and may hold the turn back.

A turn with a score below a bound is not executed, and neither is a turn without a verdict. Left out: what happens to a
turn that is held back (`agents.policies.endpoint`, `palaestra play`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.judge import JudgeClient
from palaestra.episode import Message
from palaestra.errors import ConfigError
from palaestra.judging.prompt import dialogue_prompt
from palaestra.judging.verdict import Verdict, read_verdict


class Guard:
    """Scores an agent's next turn before it is executed. Close it after use: it owns a thread and connections."""

    def __init__(self, url: str, below: float = 0.3, model: str = "rrm", deadline: float = 120.0) -> None:
        """Turns with a score less than `below` are held back; `deadline` is in seconds."""
        if not 0 < below <= 1:
            raise ConfigError(f"a guard holds back turns with a score below {below}; expected a bound from 0 to 1")
        self.below = below
        config = EndpointConfig(url, model, timeout=deadline, patience=deadline)
        self._judge: JudgeClient[Verdict] = JudgeClient(
            [Endpoint(config)], read_verdict, deadline=deadline, thoughts=True
        )

    async def verdict(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Verdict:
        """Return the verdict on a dialogue that ends with the agent's next turn. Raise Broken if there is none."""
        return await self._judge.ask(dialogue_prompt(messages, tools))

    def look(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Verdict:
        """Return the verdict as `verdict` does, from code without an event loop."""
        return asyncio.run(self.verdict(messages, tools))

    def check(self) -> None:
        """Raise a UsageError if the reward model cannot be reached."""
        self._judge.check()

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._judge.close()


def held_back_message(verdict: Verdict, below: float) -> str:
    """Return the message about a turn that is held back."""
    return f"held back: score {verdict.score:g}, below {below:g}. {verdict.critique}".rstrip()
