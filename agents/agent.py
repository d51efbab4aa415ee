"""What plays an episode: an engine that answers, and for a model the chat that turns messages into tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from palaestra.agents.chat import Chat
from palaestra.protocols import Engine


@dataclass(frozen=True, slots=True)
class Agent:
    """An engine, with a chat where the engine deals in tokens. A script or a person has no chat."""

    engine: Engine
    chat: Chat | None = None
    chats: Mapping[str, Chat | None] = field(default_factory=dict)
    """By seat, at a table whose players have chats of their own."""

    def chat_of(self, seat: str | None) -> Chat | None:
        """The chat of whoever plays a seat."""
        return self.chats.get(seat, self.chat) if seat is not None else self.chat
