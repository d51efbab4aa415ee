"""One dialogue with its exact tokens: rows that tokens are only appended to, and whether the agent wrote each token.

For agents without a chat (scripts, human players) only the messages are kept. Left out: token limits, which `play`
enforces.
"""

import copy
import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from palaestra.agents.chat import Chat
from palaestra.episode import Episode, Message, TokenRow, is_turn

_row_numbers = count()


class _Row:
    """A token row to which tokens are still appended."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.number = next(_row_numbers)
        self.ids = list(ids)
        self.sampled = [False] * len(ids)
        self.logprobs = [0.0] * len(ids)
        self.versions = [-1] * len(ids)

    def extend(self, ids: Sequence[int], sampled: bool, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.sampled.extend([sampled] * len(ids))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def copied(self) -> "_Row":
        twin = _Row(self.ids)
        twin.sampled, twin.logprobs, twin.versions = self.sampled.copy(), self.logprobs.copy(), self.versions.copy()
        return twin

    def frozen(self) -> TokenRow:
        return TokenRow(
            np.array(self.ids, np.int32),
            np.array(self.sampled, np.bool_),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
        )


class Conversation:
    """One dialogue as its agent sees it: its messages and, if the agent has a chat, its tokens."""

    def __init__(self, chat: Chat | None, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.chat = chat
        self.messages = list(messages)
        self.tools = tools
        self._row = _Row(chat.opening(messages, tools) if chat else ())
        self._done: list[TokenRow] = []
        self._thought = False

    @property
    def row(self) -> int:
        """Return the number of the current row, unique in this process."""
        return self._row.number

    @property
    def ids(self) -> Sequence[int]:
        """Return the tokens of the current row."""
        return self._row.ids

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> str:
        """Append the tokens that an engine sampled; return their text."""
        assert self.chat is not None, "an engine that samples ids needs a chat"
        assert len(ids) == len(logprobs) == len(versions), "an engine reports one log-prob and one version a token"
        self._row.extend(ids, True, logprobs, versions)
        text = self.chat.decode(ids)
        self._append_response(text)
        return text

    def add_text(self, text: str, trained: bool = True) -> None:
        """Append a turn that was written by a script or a human: its tokens count as sampled, with log-prob 0.

        With `trained=False` the turn is context: its tokens do not count as sampled and give no gradient.
        """
        if self.chat is not None:
            ids = self.chat.encode_turn(text)
            self._row.extend(ids, trained, [0.0] * len(ids), [0 if trained else -1] * len(ids))
        self._append_response(text)

    def hear(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], room: int) -> bool:
        """Append new messages from the arena. If the row would reach `room` tokens, append nothing and return False."""
        if self.chat is None:
            self.messages.extend(messages)
            self.tools = tools
            return True
        if tools == self.tools and self.chat.continues(messages, self._thought):
            delta = self.chat.delta(messages, tools, self._row.ids[-1])
            if len(self._row.ids) + len(delta) >= room:
                return False
            self._row.extend(delta, False, [0.0] * len(delta), [-1] * len(delta))
        else:
            opening = self.chat.opening([*self.messages, *messages], tools)
            if len(opening) >= room:
                return False
            self._done.append(self._row.frozen())
            self._row = _Row(opening)
            self._thought = False
        self.messages.extend(messages)
        self.tools = tools
        return True

    def copied(self) -> "Conversation":
        """Return an independent copy, whose current row has its own number."""
        twin = copy.copy(self)
        twin.messages, twin._row, twin._done = self.messages.copy(), self._row.copied(), self._done.copy()
        return twin

    def rows(self) -> tuple[TokenRow, ...]:
        """Return the token rows, the finished ones first; an empty tuple if the agent has no chat."""
        return (*self._done, self._row.frozen()) if self.chat is not None else ()

    def _append_response(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})
        self._thought = self._thought or "</think>" in text


def episode_rows(chat: Chat, episode: Episode) -> tuple[TokenRow, ...]:
    """Return the rows of all dialogues of a recorded episode, for imitation."""
    return tuple(row for messages, tools in episode.dialogues for row in written_rows(chat, messages, tools))


def written_rows(
    chat: Chat,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    trained: Collection[int] | None = None,
) -> tuple[TokenRow, ...]:
    """Return the rows of a recorded dialogue, for imitation: its own turns (`is_turn`) count as sampled tokens.

    `trained` holds the indices of the messages to train on; None means all turns.
    """
    first = next((i for i, message in enumerate(messages) if is_turn(message)), len(messages))
    conversation = Conversation(chat, messages[:first], tools)
    observation: list[Message] = []
    for index, message in enumerate(messages[first:], start=first):
        if not is_turn(message):
            observation.append(message)
            continue
        if observation:
            conversation.hear(observation, tools, room=sys.maxsize)
            observation = []
        conversation.add_text(message["content"], trained is None or index in trained)
    return conversation.rows()
