"""OpenAI-compatible servers: the client that agents and judges share.

`client` sends questions and classifies failures, `http` sends requests and retries, `background` is a thread for that
(sandbox servers use these two as well), `reply` parses and checks answers, `pace` keeps rate limits, `balanced` shares
questions among several servers, `judge` requests answers of a fixed form. Left out: the form of a dialogue there
(`agents.policies.dialogue`).
"""

from palaestra.endpoint.client import Endpoint
from palaestra.endpoint.config import EndpointConfig
from palaestra.endpoint.reply import ChatCompletion, ToolCall, Totals, Usage

__all__ = ["ChatCompletion", "Endpoint", "EndpointConfig", "ToolCall", "Totals", "Usage"]
