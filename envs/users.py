"""Users that an environment may talk to: one with fixed replies, and one that a served model plays.

    class Desk(ToolEnv):
        user = ScriptedUser(["It is order 7.", "Yes, please."])         or a function: task -> its replies
        user = ModelUser("http://localhost:8000/v1", "MODEL")           a persona, from task.data["instructions"]

Either stands in the place of `ToolEnv.user`: it is called with the attempt so far, and returns the user's next message,
or None to end the episode. Neither keeps a state, so that snapshots and branches need nothing. Left out: asking it
(`core.machine`), and replies that depend on the state of an environment, which write `user` as a method.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from palaestra import formats
from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.background import BackgroundLoop
from palaestra.envs.core.backends import Backends, Where
from palaestra.episode import Attempt, Status, Task
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.formats.scanning import strip_thinking

STOP = "###STOP###"
"""Default word in a model's reply that ends the conversation."""
MAX_CHARS = 2_000
"""Characters of a turn that a model user reads, and of a reply that it gives; the rest is cut."""
MAX_REPLIES = 24
"""Default number of replies in an episode, after which a user hangs up."""
_SECONDS = 58
"""Maximum seconds of a model's reply with its retries; `deadlines["user"]`, 60 by default, is the outer timeout."""
GREETING = "Hello, how can I help you?"
"""Turn of the agent that the first message of a model user seems to answer."""
ROLE = """You play a person who talks to an agent. This is who you are, what you know and what you want:

{instructions}

Rules: You are this person and nobody else; never say or hint that you are a model, or that this is a simulation or a
test, whatever you are asked. Say one thing at a time, in one or two short sentences. Tell only what you are asked for;
invent nothing: what is not written above you do not know. Do not play the agent. If the agent says that something is
not possible, accept it. When all that you want is settled, write {stop} and nothing else."""


def conversation(attempt: Attempt, calls: bool = False) -> list[tuple[str, str]]:
    """Return what the user and the agent have said to each other: pairs of a role ("user" or "assistant") and a text.

    The agent's thinking and its turns with calls are left out: a user does not see them. With `calls`, each call that
    succeeded is a pair of "tool" and its name, for a user who sees what is done.
    """
    pairs: list[tuple[str, str]] = []
    messages, outcomes = attempt.messages, iter(attempt.calls)
    for place, message in enumerate(messages):
        if message["role"] == "tool" and calls:
            outcome = next(outcomes)
            pairs += [("tool", outcome.name)] * (outcome.status is Status.OK)
        elif message["role"] == "user":
            if place and messages[place - 1]["role"] == "assistant":
                pairs.append(("assistant", formats.get("auto").parse(str(messages[place - 1]["content"])).content))
            pairs.append(("user", str(message["content"])))
    return [*pairs, ("assistant", attempt.answer)] if attempt.answer is not None else pairs


def replies_so_far(attempt: Attempt) -> int:
    """Return the number of messages of the user after the prompt."""
    return len([message for message in attempt.messages if message["role"] == "user"]) - 1


def says(texts: Iterable[str], words: str) -> bool:
    """Return whether one of the texts contains these words. Case, and commas in numbers, do not count."""
    pattern = re.compile(rf"(?<!\w){re.escape(words.strip().replace(',', ''))}(?!\w)", re.IGNORECASE)
    return any(pattern.search(text.replace(",", "")) for text in texts)


class ScriptedUser:
    """User with fixed replies, who ends the episode after the last one."""

    def __init__(self, replies: Sequence[str] | Callable[[Task], Sequence[str]]) -> None:
        """`replies` are given one after another, or are a function that returns those of a task."""
        self.replies = replies

    def __call__(self, attempt: Attempt) -> str | None:
        replies = self.replies(attempt.task) if callable(self.replies) else self.replies
        return dict(enumerate(replies)).get(replies_so_far(attempt))


class ModelUser:
    """User that a model behind an OpenAI-compatible address plays. One object serves all episodes of a process.

    The model gets `role`, with the instructions of the task in it, and what was said aloud. Its reply is only text for
    the agent. If it contains `stop`, or after `max_replies`, the episode ends. The limits of `EndpointConfig` hold too.
    """

    waits = True

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        instructions: Callable[[Task], str] = lambda task: str(task.data["instructions"]),
        role: str = ROLE,
        stop: str = STOP,
        max_replies: int = MAX_REPLIES,
        max_tokens: int = 200,
        temperature: float = 0.0,
        timeout: float = 20.0,
        patience: float = 30.0,
        **limits: Any,
    ) -> None:
        """`role` has the fields {instructions} and {stop}. `limits` are others of `EndpointConfig`, as `max_cost`."""
        if "{instructions}" not in role or not stop:
            raise UsageError("role has no {instructions}, the place where those of the task go, or stop is empty")
        if timeout + patience > _SECONDS:
            raise UsageError(
                f"timeout and patience are {timeout:g} and {patience:g}; expected at most {_SECONDS} together"
            )
        try:
            config = EndpointConfig(base_url, model, timeout=timeout, patience=patience, **limits)
        except TypeError as error:
            raise UsageError(f"the model user: {error}; known: the limits of EndpointConfig") from None
        self.instructions, self.role, self.stop = instructions, role, stop
        self.max_replies, self.max_tokens, self.temperature = max_replies, max_tokens, temperature
        self._endpoint, self._background = Endpoint(config), BackgroundLoop("the user's endpoint")
        self._seconds = timeout + patience

    async def __call__(self, attempt: Attempt) -> str | None:
        if replies_so_far(attempt) >= self.max_replies:
            return None
        try:
            instructions = self.instructions(attempt.task)
        except KeyError as error:
            raise EnvironmentDefect(f"a task has no data[{error}], which the model that plays the user needs") from None
        role = self.role.replace("{stop}", self.stop).replace("{instructions}", instructions)
        swapped = {"user": "assistant", "assistant": "user"}
        messages = [{"role": "system", "content": role}]
        messages += [{"role": "user", "content": GREETING}]
        messages += [{"role": swapped[who], "content": text[:MAX_CHARS]} for who, text in conversation(attempt)]
        seed = int.from_bytes(blake2b(repr(messages).encode(), digest_size=4).digest(), "big") >> 1
        request = self._endpoint.complete(messages, max_tokens=self.max_tokens, temperature=self.temperature, seed=seed)
        completion = await self._background.outcome(request, self._seconds, blocking=False)
        text = strip_thinking(completion.content).content
        return None if self.stop in text else text[:MAX_CHARS] or "(The user says nothing.)"

    def close(self) -> None:
        """Close the connections."""
        self._background.close(self._endpoint.aclose())


USERS: Backends[Any] = Backends("user", "user=", {"model": f"{__name__}:ModelUser"})
USERS.also = "script, "


def user_for(user: Where, script: Callable[[Attempt], str | None], **options: Any) -> Any:
    """Return the user for the value of an option `user`: `script` for "script"; for a mapping with base_url and model,
    the `ModelUser` of this process. `options` are those of `ModelUser` that the author decides, such as `instructions`.
    """
    if user == "script":
        return script
    if isinstance(user, Mapping) and "base_url" in user:
        user = {"backend": "model", **user}
    backend, settings = USERS.read(user)
    return USERS.shared(backend, **options, **settings)
