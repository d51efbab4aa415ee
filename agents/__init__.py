"""Agents: dialogues as token rows, engines that sample turns, and the loop that plays episodes."""

from palaestra.agents.agent import Agent
from palaestra.agents.chat import Chat
from palaestra.agents.conversation import Conversation
from palaestra.agents.play import play
from palaestra.agents.policies.endpoint import EndpointPolicy
from palaestra.agents.policies.human import HumanPolicy
from palaestra.agents.policies.scripted import ScriptedPolicy
from palaestra.agents.token_limits import TokenLimits

__all__ = ["Agent", "Chat", "Conversation", "EndpointPolicy", "HumanPolicy", "ScriptedPolicy", "TokenLimits", "play"]
