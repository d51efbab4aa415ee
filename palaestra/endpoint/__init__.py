"""Clients of OpenAI-compatible servers, which agents and judges share.

`client` sends questions and classifies failures, `http` sends requests and retries them, `background` runs an event
loop on a thread (remote sandboxes use these two as well), `reply` parses and checks answers, `pace` keeps rate limits,
`balanced` shares questions among several servers, `judge` requests answers of a fixed form. Left out: the form in which
a server gets a dialogue (`agents.policies.dialogue`).
"""

from palaestra.endpoint.client import Endpoint
from palaestra.endpoint.config import EndpointConfig
from palaestra.endpoint.reply import ChatCompletion, ToolCall, Totals, Usage

__all__ = ["ChatCompletion", "Endpoint", "EndpointConfig", "ToolCall", "Totals", "Usage"]
