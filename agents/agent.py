"""The agent that plays an episode: an engine that answers and, for a model, a chat that turns messages into tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from palaestra.agents.chat import Chat
from palaestra.protocols import Engine


@dataclass(frozen=True, slots=True)
class Agent:
    """An engine with a chat. The chat is None if the engine samples no tokens, as for scripts and human players."""

    engine: Engine
    chat: Chat | None = None
    chats: Mapping[str, Chat | None] = field(default_factory=dict)
    """The chat of each seat, in a game whose players have different chats."""

    def chat_of(self, seat: str | None) -> Chat | None:
        """Return the chat of this seat, or None if its player samples no tokens. A `seat` of None is the only seat."""
        return self.chats.get(seat, self.chat) if seat is not None else self.chat
