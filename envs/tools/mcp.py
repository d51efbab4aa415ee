"""Tools of an MCP server as a toolkit: a program that palaestra starts (stdio) or an address (streamable HTTP).

    toolkits = (tools_from_mcp(["npx", "-y", "@modelcontextprotocol/server-everything"], allow=("echo", "add")),)

The list of tools is requested once, when an environment opens. Agents see the tools' schemas unchanged; `mcp_schema`
checks arguments by them. Each episode has its own connection, which its first call opens, so a server's program keeps
the state of one episode; `shared=True` is for servers without state. Left out: resources, prompts, and questions that a
server asks its client.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from palaestra.envs.core.calls import clip
from palaestra.envs.core.tool import Tool
from palaestra.envs.running.work import Conditions, WorkMode
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage
from palaestra.envs.tools.mcp_schema import GivenSchema
from palaestra.envs.tools.mcp_session import CLOSE_SECONDS, GRACE_SECONDS, START_SECONDS, McpServer, McpSession
from palaestra.episode import Task
from palaestra.errors import MissingExtra, ToolError, UsageError

MAX_TOOLS = 128


def tools_from_mcp(
    command: Sequence[str] = (),
    *,
    url: str = "",
    allow: Sequence[str] | None = None,
    prefix: str = "",
    shared: bool = False,
    variables: Mapping[str, str] | None = None,
    folder: str | None = None,
    token_env: str = "",
    start_seconds: float = START_SECONDS,
    call_seconds: float = 30.0,
    result_chars: int = 20_000,
    max_calls: int | None = None,
    max_seconds: float | None = None,
) -> "McpTools":
    """Return a factory of the toolkit of a server, for an environment's `toolkits`.

    `allow` names the server's tools that agents may use (None means all); `prefix` is put before their names.
    `variables` are added to the program's environment, which has PATH and HOME. A server at an address gets the token
    in the variable `token_env`. `start_seconds` limits the server's start and the listing of its tools. `call_seconds`,
    `max_calls` and `max_seconds` are the budgets of an episode, `result_chars` is the maximum length of a result.
    """
    if isinstance(command, str):
        raise UsageError(f"command is {command!r}; expected a list of words, such as ['npx', '-y', 'a-server']")
    variable_pairs = tuple(sorted((variables or {}).items()))
    budgets = (call_seconds, max_calls, max_seconds)
    _kit_class(*budgets)  # refuses those that no call could keep
    return McpTools(
        McpServer(tuple(command), url, variable_pairs, folder, token_env, start_seconds),
        None if allow is None else tuple(allow),
        prefix,
        shared,
        result_chars,
        budgets,
    )


class McpToolkit(BudgetedToolkit):
    """The tools of one server in one episode."""

    _source: "McpTools"
    _session: McpSession

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Prepare the connection; the agent's first call opens it."""
        self.restore(BudgetUsage())

    def close(self) -> None:
        """End the episode's connection, and the program that it started. A shared connection stays open."""
        if not self._source.shared:
            self._session.close()

    def snapshot(self) -> BudgetUsage:
        """Return the budgets used so far. Only a server without state (`shared`) supports snapshots."""
        if not self._source.shared:
            super().snapshot()
        return self.usage

    def restore(self, state: BudgetUsage) -> None:
        """Continue from a snapshot, with a connection that the next call opens."""
        source = self._source
        self.usage = state
        self._session = _shared_session(source.server) if source.shared else McpSession(source.server, stateful=True)

    async def _run(self, name: str, /, **arguments: Any) -> str:
        result = await self.within_budget(partial(self._session.call, name, arguments))
        text = clip(content_text(result), self._source.result_chars)
        if result.is_error:
            raise ToolError(text or "the server says only that it failed")
        return text


@cache
def _kit_class(call_seconds: float, max_calls: int | None, max_seconds: float | None) -> type[McpToolkit]:
    """Return a toolkit class with these budgets. They are checked like those of any toolkit."""
    budgets = {"call_seconds": call_seconds, "max_calls": max_calls, "max_seconds": max_seconds}
    return type("McpToolkit", (McpToolkit,), budgets)


@cache
def _shared_session(server: McpServer) -> McpSession:
    return McpSession(server, stateful=False)


@dataclass(frozen=True, slots=True)
class McpTools:
    """A factory of toolkits for a server's tools: call it to make a toolkit."""

    server: McpServer
    allow: tuple[str, ...] | None
    prefix: str
    shared: bool
    result_chars: int
    budgets: tuple[float, int | None, float | None]

    def __call__(self) -> McpToolkit:
        """Return a new toolkit."""
        toolkit = _kit_class(*self.budgets)()
        toolkit._source = self
        toolkit.set_tools(self.tools)
        for tool, name in zip(toolkit.tools.values(), self._names(), strict=True):
            setattr(toolkit, tool.attribute, partial(toolkit._run, name))
        return toolkit

    @property
    def tools(self) -> dict[str, Tool]:
        """Return the tools by the names that agents use."""
        offered = _server_tools(self.server)
        tools_by_name: dict[str, Tool] = {}
        for number, name in enumerate(self._names()):
            tool = _tool(self.server, offered[name], self.prefix, f"call_{number}", self.budgets[0])
            if tool.name in tools_by_name:
                raise UsageError(f"{self.server} has two tools that would be called {tool.name!r}; name one in `allow`")
            tools_by_name[tool.name] = tool
        return tools_by_name

    def _names(self) -> Sequence[str]:
        """Return the names of the offered tools, as the server writes them."""
        offered = _server_tools(self.server)
        if self.allow is None and len(offered) > MAX_TOOLS:
            raise UsageError(f"{self.server} has {len(offered)} tools, more than {MAX_TOOLS}; name some in `allow`")
        for name in self.allow or ():
            if name not in offered:
                close = get_close_matches(name, offered, n=1)
                hint = f"is {close[0]!r} meant?" if close else f"it has {', '.join(offered)}"
                raise UsageError(f"{self.server} has no tool {name!r}; {hint}")
        return list(offered) if self.allow is None else self.allow


def _server_tools(server: McpServer) -> Mapping[str, Any]:
    """Return the server's tools by name.

    After a failure, raise its error again without asking the server, for as long as the failed attempt took.
    """
    begin = time.monotonic()
    end, failure = _failures.get(server, (begin, ""))
    if begin < end:
        raise UsageError(failure)
    try:
        return _list_tools(server)
    except UsageError as error:
        now = time.monotonic()
        _failures[server] = (2 * now - begin, str(error))
        raise


_failures: dict[McpServer, tuple[float, str]] = {}
"""Moment until which a failed start is not tried again, and its error, by server."""


@cache
def _list_tools(server: McpServer) -> Mapping[str, Any]:
    """Request the list of the server's tools, once per process, and return them by name."""
    if find_spec("mcp") is None:
        raise MissingExtra("mcp", "mcp", "tools of an MCP server")
    session = McpSession(server, stateful=True)
    try:
        return {tool.name: tool for tool in session.tools()}
    finally:
        session.close()


def _tool(server: McpServer, entry: Any, prefix: str, attribute: str, seconds: float) -> Tool:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", prefix + entry.name)[:64]
    parameters = {"type": "object", "properties": {}} | dict(entry.input_schema)
    about = {"name": name, "description": entry.description or "", "parameters": parameters}
    return Tool(
        name=name,
        attribute=attribute,
        function=McpToolkit._run,
        conditions=Conditions(WorkMode.ASYNC, server.start_seconds + CLOSE_SECONDS + seconds + 3 * GRACE_SECONDS),
        schema={"type": "function", "function": about},
        signature=GivenSchema(name, parameters),
    )


def content_text(result: Any) -> str:
    """Return a result as text: its texts, and kind and size of other blocks. Without blocks: its data as JSON."""
    parts = [_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _block(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
    if block.type == "resource_link":
        return f"[resource {block.uri} {block.name}]"
    resource = block.resource
    text = getattr(resource, "text", None)
    return str(text) if text is not None else f"[resource {resource.uri}, {len(resource.blob) * 3 // 4} bytes]"
