"""Tools of an MCP server as a toolkit: a program that we start (stdio) or an address (streamable HTTP).

    toolkits = (tools_from_mcp(["npx", "-y", "@modelcontextprotocol/server-everything"], allow=("echo", "add")),)

The server is asked once for its tools, when an environment opens; agents get their schemas as they are, and arguments
are checked by them. Each episode has a connection of its own, opened by its first call, so a server's program keeps
the state of one episode; `shared=True` is for servers without state. Left out: resources, prompts, and questions that
a server asks its client.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from palaestra.envs.core.calls import clip
from palaestra.envs.core.tool import Tool
from palaestra.envs.running.work import Conditions, Mode
from palaestra.envs.tools.budgets import BudgetedToolkit, Spent
from palaestra.envs.tools.mcp_session import GRACE_SECONDS, START_SECONDS, McpServer, McpSession
from palaestra.episode import Task
from palaestra.errors import MissingExtra, ToolError, UsageError

MAX_TOOLS = 128
_SHOWN_FAULTS = 5


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
    call_seconds: float = 30.0,
    result_chars: int = 20_000,
    max_calls: int | None = None,
    max_seconds: float | None = None,
) -> "McpTools":
    """What makes the toolkit of a server, for `toolkits`.

    `allow` names the server's tools that agents are offered, all if None; `prefix` goes before their names. `variables`
    of the program's environment stand beside PATH and HOME; an address gets the token of the variable `token_env`.
    `call_seconds`, `max_calls` and `max_seconds` are the budgets of an episode, `result_chars` the longest result.
    """
    if isinstance(command, str):
        raise UsageError(f"command is {command!r}; expected a list of words, such as ['npx', '-y', 'a-server']")
    given = tuple(sorted((variables or {}).items()))
    budgets = (call_seconds, max_calls, max_seconds)
    _kit_class(*budgets)  # refuses those that no call could keep
    return McpTools(
        McpServer(tuple(command), url, given, folder, token_env),
        None if allow is None else tuple(allow),
        prefix,
        shared,
        result_chars,
        budgets,
    )


class McpToolkit(BudgetedToolkit):
    """The tools of one server, in one episode."""

    _source: "McpTools"
    _session: McpSession

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """The server is not asked before the first call."""
        self._open(Spent())

    def close(self) -> None:
        """End the episode's connection, and the program that it started."""
        if not self._source.shared:
            self._session.close()

    def snapshot(self) -> Spent:
        """Only a server without state goes on as if nothing had happened."""
        if not self._source.shared:
            super().snapshot()
        return self.spent

    def restore(self, state: Spent) -> None:
        """Go on from there."""
        self._open(state)

    def _open(self, spent: Spent) -> None:
        source = self._source
        self.spent = spent
        self._session = _shared_session(source.server) if source.shared else McpSession(source.server, stateful=True)

    async def _run(self, name: str, /, **arguments: Any) -> str:
        result = await self.within_budget(partial(self._session.call, name, arguments))
        text = clip(told(result), self._source.result_chars)
        if result.is_error:
            raise ToolError(text or "the server says only that it failed")
        return text


@cache
def _kit_class(call_seconds: float, max_calls: int | None, max_seconds: float | None) -> type[McpToolkit]:
    """A class with these budgets, which are checked as those of any toolkit."""
    budgets = {"call_seconds": call_seconds, "max_calls": max_calls, "max_seconds": max_seconds}
    return type("McpToolkit", (McpToolkit,), budgets)


@cache
def _shared_session(server: McpServer) -> McpSession:
    return McpSession(server, stateful=False)


@dataclass(frozen=True, slots=True)
class McpTools:
    """A server's tools; called, it makes a toolkit."""

    server: McpServer
    allow: tuple[str, ...] | None
    prefix: str
    shared: bool
    result_chars: int
    budgets: tuple[float, int | None, float | None]

    def __call__(self) -> McpToolkit:
        """The toolkit of one machine."""
        made = _kit_class(*self.budgets)()
        made._source = self
        tools = self.tools
        object.__setattr__(made, "tools", tools)  # in place of the class's, which has none
        for tool, name in zip(tools.values(), self._names(), strict=True):
            setattr(made, tool.attribute, partial(made._run, name))
        return made

    @property
    def tools(self) -> dict[str, Tool]:
        """By the names that agents use."""
        offered = _listed(self.server)
        found = {}
        for number, name in enumerate(self._names()):
            tool = _tool(offered[name], self.prefix, f"call_{number}", self.budgets[0])
            if tool.name in found:
                raise UsageError(f"{self.server} has two tools that would be called {tool.name!r}; name one in `allow`")
            found[tool.name] = tool
        return found

    def _names(self) -> Sequence[str]:
        """What is offered, as the server calls it."""
        offered = _listed(self.server)
        if self.allow is None and len(offered) > MAX_TOOLS:
            raise UsageError(f"{self.server} has {len(offered)} tools, more than {MAX_TOOLS}; name some in `allow`")
        for name in self.allow or ():
            if name not in offered:
                close = get_close_matches(name, offered, n=1)
                hint = f"is {close[0]!r} meant?" if close else f"it has {', '.join(offered)}"
                raise UsageError(f"{self.server} has no tool {name!r}; {hint}")
        return list(offered) if self.allow is None else self.allow


@cache  # A failure is not kept: the server may start the next time.
def _listed(server: McpServer) -> Mapping[str, Any]:
    """Its tools by name, asked once a process."""
    if find_spec("mcp") is None or find_spec("jsonschema") is None:
        raise MissingExtra("mcp", "mcp", "tools of an MCP server")
    session = McpSession(server, stateful=True)
    try:
        return {tool.name: tool for tool in session.tools()}
    finally:
        session.close()


def _tool(listed: Any, prefix: str, attribute: str, seconds: float) -> Tool:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", prefix + listed.name)[:64]
    parameters = {"type": "object", "properties": {}} | dict(listed.input_schema)
    about = {"name": name, "description": listed.description or "", "parameters": parameters}
    return Tool(
        name=name,
        attribute=attribute,
        function=McpToolkit._run,
        conditions=Conditions(Mode.ASYNC, START_SECONDS + seconds + 3 * GRACE_SECONDS),
        schema={"type": "function", "function": about},
        signature=GivenSchema(name, parameters),
    )


class GivenSchema:
    """Checks arguments by a JSON schema that a server gave."""

    plain = None

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
        from jsonschema.validators import validator_for  # type: ignore[import-untyped]
        from referencing import Registry

        kind = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError as error:
            raise UsageError(f"the tool {name!r} has a broken schema: {error.message}; `allow` others") from None
        # Without a registry of our own, a reference in it would be fetched from the network.
        self._faults: Callable[[Any], Any] = kind(schema, registry=Registry()).iter_errors

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as they are."""
        faults = []
        for fault in self._faults(dict(arguments)):
            where = ".".join(map(str, fault.absolute_path))
            faults.append(f"{where}: {fault.message}" if where else fault.message)
            if len(faults) == _SHOWN_FAULTS:
                break
        if faults:
            raise ToolError("; ".join(" ".join(fault[:200].split()) for fault in faults))
        return arguments


def told(result: Any) -> str:
    """A result as text: its texts; what is no text by its kind and size; its data where there is nothing else."""
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
