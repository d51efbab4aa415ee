"""OpenAI-compatible servers: the client that agents and judges share.

`client` asks and judges, `http` sends and tries again, `background` is a thread for that (sandbox servers are asked by
these two as well), `reply` reads what came back and believes little of it, `pace` keeps rate limits; `balanced` shares
questions among several, `judge` asks for answers of a form. Left out: what a dialogue looks like
there (`agents.policies.dialogue`).
"""

from palaestra.endpoint.client import Endpoint
from palaestra.endpoint.config import EndpointConfig
from palaestra.endpoint.reply import Answer, ToolCall, Totals, Usage

__all__ = ["Answer", "Endpoint", "EndpointConfig", "ToolCall", "Totals", "Usage"]
