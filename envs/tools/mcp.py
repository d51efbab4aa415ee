"""Tools of an MCP server as a toolkit: a program that palaestra starts (stdio) or an address (streamable HTTP).

    toolkits = (tools_from_mcp(["npx", "-y", "@modelcontextprotocol/server-everything"], allow=("echo", "add")),)

The list of tools is requested once, when an environment opens. Agents see the tools' schemas, with names and
descriptions of the author's where there are some; `mcp_schema` checks arguments by them. Each episode has its own
connection, which its first call opens, so a server's program keeps the state of one episode; `shared=True` is for
servers without state. Hidden calls, which no agent sees, set up a task (`setup`) and return the final state (`final`).
Left out: resources, prompts, and questions that a server asks its client.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from palaestra.envs.core.calls import clip
from palaestra.envs.core.tool import Tool
from palaestra.envs.core.tool_names import OfferedToolkit, chosen, offer
from palaestra.envs.running.work import Conditions, WorkMode
from palaestra.envs.tools.budgets import BudgetedToolkit, BudgetUsage
from palaestra.envs.tools.mcp_results import content_text, final_value
from palaestra.envs.tools.mcp_schema import GivenSchema
from palaestra.envs.tools.mcp_session import CLOSE_SECONDS, GRACE_SECONDS, START_SECONDS, McpServer, McpSession
from palaestra.episode import Task
from palaestra.errors import Broken, MissingExtra, ToolError, UsageError

MAX_TOOLS = 128
HiddenCall = str | tuple[str, Callable[[Task], Mapping[str, Any]]]
"""A call that no agent sees: the name of the server's tool, or the name and a function of the task that returns the
arguments."""


def tools_from_mcp(
    command: Sequence[str] = (),
    *,
    url: str = "",
    allow: Collection[str] | None = None,
    hide: Collection[str] = (),
    prefix: str = "",
    rename: Mapping[str, str] | None = None,
    describe: Mapping[str, str] | None = None,
    setup: HiddenCall | None = None,
    final: HiddenCall | None = None,
    shared: bool = False,
    variables: Mapping[str, str] | None = None,
    task_variables: Callable[[Task], Mapping[str, str]] | None = None,
    task_arguments: Callable[[Task], Sequence[str]] | None = None,
    folder: str | None = None,
    token_env: str = "",
    start_seconds: float = START_SECONDS,
    call_seconds: float = 30.0,
    result_chars: int = 20_000,
    max_calls: int | None = None,
    max_seconds: float | None = None,
) -> OfferedToolkit:
    """Return a factory of the toolkit of a server, for an environment's `toolkits`.

    `allow`, `hide`, `prefix`, `rename` and `describe` say which tools agents may use, and under which names and
    descriptions (see `palaestra.envs.offer`). `setup` is called when an episode begins; the result of `final`, called
    when it ends, is `attempt.final[NAME]`. Agents are not offered the tools of these two. `variables` are added to the
    program's environment, which has PATH and HOME; `task_variables` and `task_arguments` add to the environment and to
    the command of an episode what its task says. A server at an address gets the token in the variable `token_env`.
    `start_seconds` limits the server's start and the listing of its tools. `call_seconds`, `max_calls` and
    `max_seconds` are the budgets of an episode, `result_chars` is the maximum length of a result.
    """
    if isinstance(command, str):
        raise UsageError(f"command is {command!r}; expected a list of words, such as ['npx', '-y', 'a-server']")
    if (url and (task_variables or task_arguments)) or (shared and (setup or final or task_variables)):
        reason = "one connection serves all episodes" if shared else "a server at an address is started by others"
        raise UsageError(f"{reason}, so a task cannot set it up; leave out {'shared=True' if shared else 'task_...'}")
    if not (setup is None or isinstance(setup, str) or callable(setup[1])):
        raise UsageError(f"setup is {setup!r}; expected a tool's name, or (name, a function of the task)")
    variable_pairs = tuple(sorted((variables or {}).items()))
    budgets = (call_seconds, max_calls, max_seconds)
    _kit_class(bool(setup), bool(final), *budgets)  # refuses those that no call could keep
    tools = McpTools(
        McpServer(tuple(command), url, variable_pairs, folder, token_env, start_seconds),
        None if allow is None else tuple(allow),
        tuple(hide),
        setup,
        final,
        task_variables,
        task_arguments,
        shared,
        result_chars,
        budgets,
    )
    return offer(tools, prefix=prefix, rename=rename, describe=describe)


class McpToolkit(BudgetedToolkit):
    """The tools of one server in one episode."""

    _source: "McpTools"
    _session: McpSession
    _task: Task | None = None

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Prepare the connection; the first call opens it."""
        self._task = task
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
        self._session = _shared_session(source.server) if source.shared else McpSession(source.server_of(self._task))

    async def _run(self, name: str, /, **arguments: Any) -> str:
        result = await self.within_budget(partial(self._session.call, name, arguments))
        text = clip(content_text(result), self._source.result_chars)
        if result.is_error:
            raise ToolError(text or "the server says only that it failed")
        return text

    async def _hidden_call(self, call: HiddenCall, purpose: str) -> Any:
        """Call a tool that the agent does not see. Raise Broken if the server refuses the call."""
        name, arguments_of = (call, None) if isinstance(call, str) else call
        assert self._task is not None
        arguments = arguments_of(self._task) if arguments_of else {}
        try:
            result = await self._session.call(name, arguments, self.call_seconds)
            refusal = content_text(result) if result.is_error else ""
        except ToolError as error:
            result, refusal = None, str(error)
        if refusal:
            raise Broken(
                f"{self._source.server} refuses the hidden call {name}({str(dict(arguments))[:100]}), which {purpose}: "
                f"{refusal[:500]}"
            )
        return result


class _SetUp(McpToolkit):
    """A toolkit whose server sets up the task."""

    async def start(self, task: Task, rng: np.random.Generator) -> None:  # type: ignore[override]
        """Prepare the connection, and have the server set up the task."""
        super().start(task, rng)
        assert self._source.setup is not None
        await self._hidden_call(self._source.setup, "sets up the task")


class _Judged(McpToolkit):
    """A toolkit whose server returns the final state."""

    async def final(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the result of the hidden call, by the name of its tool."""
        call = self._source.final
        assert call is not None
        return {tool_name(call): final_value(await self._hidden_call(call, "returns the final state"))}


@cache
def _kit_class(
    sets_up: bool, has_final: bool, call_seconds: float, max_calls: int | None, max_seconds: float | None
) -> type[McpToolkit]:
    """Return a toolkit class with these budgets. They are checked like those of any toolkit."""
    budgets = {"call_seconds": call_seconds, "max_calls": max_calls, "max_seconds": max_seconds}
    bases = (*((_SetUp,) if sets_up else ()), *((_Judged,) if has_final else ())) or (McpToolkit,)
    return type("McpToolkit", bases, budgets)


@cache
def _shared_session(server: McpServer) -> McpSession:
    return McpSession(server, stateful=False)


def tool_name(call: HiddenCall) -> str:
    """Return the name of the tool of a hidden call."""
    return call if isinstance(call, str) else call[0]


@dataclass(frozen=True, slots=True)
class McpTools:
    """A factory of toolkits for a server's tools: call it to make a toolkit."""

    server: McpServer
    allow: tuple[str, ...] | None
    hide: tuple[str, ...]
    setup: HiddenCall | None
    final: HiddenCall | None
    task_variables: Callable[[Task], Mapping[str, str]] | None
    task_arguments: Callable[[Task], Sequence[str]] | None
    shared: bool
    result_chars: int
    budgets: tuple[float, int | None, float | None]

    def __str__(self) -> str:
        return str(self.server)

    def __call__(self) -> McpToolkit:
        """Return a new toolkit."""
        toolkit = _kit_class(self.setup is not None, self.final is not None, *self.budgets)()
        toolkit._source = self
        toolkit.set_tools(self.tools)
        for tool, name in zip(toolkit.tools.values(), self._names(), strict=True):
            setattr(toolkit, tool.attribute, partial(toolkit._run, name))
        return toolkit

    @property
    def tools(self) -> dict[str, Tool]:
        """Return the tools by the names that agents use."""
        return _agents_tools(self)

    def server_of(self, task: Task | None) -> McpServer:
        """Return the server of an episode: with the arguments and variables of its task."""
        server = self.server
        if task is not None and self.task_arguments is not None:
            server = replace(server, command=(*server.command, *map(str, self.task_arguments(task))))
        if task is not None and self.task_variables is not None:
            variables = {name: str(value) for name, value in self.task_variables(task).items()}
            server = replace(server, variables=tuple(sorted((dict(server.variables) | variables).items())))
        return server

    def _names(self) -> Sequence[str]:
        """Return the names of the offered tools, as the server writes them."""
        offered = _server_tools(self.server)
        hidden = [tool_name(call) for call in (self.setup, self.final) if call is not None]
        names = [name for name in chosen(offered, self.allow, (*self.hide, *hidden), str(self)) if name not in hidden]
        if len(names) > MAX_TOOLS:
            raise UsageError(f"{self.server} has {len(names)} tools, more than {MAX_TOOLS}; name some in `allow`")
        return names


@cache
def _agents_tools(source: McpTools) -> dict[str, Tool]:
    """Return the tools of a server by the names that agents use."""
    offered = _server_tools(source.server)
    tools_by_name: dict[str, Tool] = {}
    for number, name in enumerate(source._names()):
        tool = _tool(source.server, offered[name], f"call_{number}", source.budgets[0])
        if tool.name in tools_by_name:
            raise UsageError(f"{source.server} has two tools that would be called {tool.name!r}; name one in `allow`")
        tools_by_name[tool.name] = tool
    return tools_by_name


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
    session = McpSession(server)
    try:
        return {tool.name: tool for tool in session.tools()}
    finally:
        session.close()


def _tool(server: McpServer, entry: Any, attribute: str, seconds: float) -> Tool:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", entry.name)[:64]
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
