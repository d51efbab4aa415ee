"""What plays an episode: an engine that answers, and for a model the chat that turns messages into tokens."""

from dataclasses import dataclass

from palaestra.agents.chat import Chat
from palaestra.protocols import Engine


@dataclass(frozen=True, slots=True)
class Agent:
    """An engine, with a chat where the engine deals in tokens. A script or a person has no chat."""

    engine: Engine
    chat: Chat | None = None
