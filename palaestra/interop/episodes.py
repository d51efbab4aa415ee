"""One episode for a package whose own loop asks the model: turns and results in the form of OpenAI-compatible servers.

Such a loop sees texts, so what it plays is not token-exact by us: whoever trains on it needs a client that keeps the
tokens. An environment's format of calls does not matter here, for calls come and go as objects. Left out: games.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from palaestra import formats
from palaestra.agents.policies.dialogue import to_text
from palaestra.endpoint import ChatCompletion, ToolCall
from palaestra.envs.arena.text_env import TextEnv
from palaestra.episode import Ending, Message
from palaestra.errors import UsageError

_NOT_RUN = "This call was not run."


class NativeEpisode:
    """An episode of an environment. The package plays it turn by turn, and reads the reward when `ending` is set."""

    def __init__(self, env_id: str, **options: Any) -> None:
        """`options` are those of the environment, its split among them."""
        env = open_text_env(env_id, **options)
        self.env, self.tools, self.task_count = env, env.schemas, len(env.tasks)
        self.reward: float | None = None
        """Reward of the episode; None while it runs, and for BROKEN."""
        self.parts: Mapping[str, float] = {}
        self.ending = ""
        """Name of the ending, as in `palaestra.Ending`; empty while the episode runs."""
        self.fault = ""

    def begin(self, task: int, seed: int) -> list[Message]:
        """Begin an episode of a task, and return the messages that open it. Raise Broken if it cannot begin."""
        self.reward, self.parts, self.ending, self.fault = None, {}, "", ""
        _, info = self.env.reset(seed=seed, options={"task": task})
        return [dict(message) for message in info["messages"]]

    def take(
        self, content: str, calls: Sequence[tuple[str, str, str]] = (), *, reasoning: str = "", cut: bool = False
    ) -> list[Message]:
        """Take a turn, with the id, name and arguments (JSON) of each call, and return the messages that answer it.

        `cut` is True for a turn whose tokens ran out, which ends the episode.
        """
        tool_calls = tuple(ToolCall(name, arguments) for _, name, arguments in calls)
        answer = ChatCompletion(content, reasoning, tool_calls)
        text = to_text(answer, self.tools, formats.get(self.env.author.format))
        step = self.env.finish(Ending.LENGTH_LIMIT, text) if cut else self.env.step(text)
        return self._read(step, [identity for identity, *_ in calls])

    def cut(self) -> None:
        """End an episode that the package ended by a limit of its own."""
        if not self.ending:
            self._read(self.env.finish(Ending.LENGTH_LIMIT), [])

    def close(self) -> None:
        """Release what the environment holds."""
        self.env.close()

    def _read(self, step: tuple[Any, ...], ids: Sequence[str]) -> list[Message]:
        _, reward, _, _, info = step
        if info["ending"]:
            self.ending, self.parts, self.fault = info["ending"], info["parts"], info["fault"]
            self.reward = None if self.ending == Ending.BROKEN else reward
        results = [str(message.get("content") or "") for message in info["messages"] if message["role"] == "tool"]
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": identity, "content": results[at] if at < len(results) else _NOT_RUN}
            for at, identity in enumerate(ids)
        ]
        # The text of a call that could not be read is no call of theirs; what the environment says to it is a message.
        answers += [{"role": "user", "content": text} for text in results[len(ids) :]]
        return answers + [dict(message) for message in info["messages"] if message["role"] != "tool"]


def open_text_env(env_id: str, **options: Any) -> TextEnv:
    """Return one environment of palaestra. Raise a UsageError for any other id."""
    env = gymnasium.make(env_id, **options).unwrapped
    if not isinstance(env, TextEnv):
        raise UsageError(f"{env_id} is not registered by palaestra.register; only such environments are played here")
    return env
