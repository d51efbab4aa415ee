"""An environment as an MCP server: any client plays an episode with its tools and gets the reward at the end.

Besides the environment's tools, the client can call `reset`, which begins an episode, and `submit`, which submits the
answer. Each call is a turn. Over pipes there is one episode at a time; over HTTP there is one for each session, and one
that all clients without a session share, such as those of the newest protocol. Left out: turns of several calls.
"""

import asyncio
import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import palaestra
from palaestra import formats
from palaestra.envs.arena.by_rule import ByRule
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.openers import playables
from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.text_env import draw_start
from palaestra.envs.core.machine import Machine
from palaestra.envs.sandboxes.remote.listening import listen
from palaestra.episode import Ending, Event
from palaestra.errors import MissingExtra, PalaestraError, UsageError

if TYPE_CHECKING:
    from mcp.server import Server

MAX_EPISODES = 64
"""Maximum number of episodes at once over HTTP, one for each session; if one more begins, the oldest is dropped."""
_CONNECTIONS = 1024
_BEGIN = "no episode runs: call {} first"
_OVER = "the episode is over: call {} for another"
_RESET = "Begin an episode: tells the task. Drawn at random unless a number or a seed is given."
_SUBMIT = "Hand in the final answer. Ends the episode and tells the reward."
_HOW = "Call {reset} to be told a task, solve it with the other tools, and hand in the answer with {submit}."


class CallResult(NamedTuple):
    """Result of a client's call, to send to the client."""

    text: str
    failed: bool = False
    ended: Event | None = None
    """Last event of the episode if it ended; else None."""


class ServedEpisode:
    """Episodes of one client, one after the other. Its methods block; only one of them may run at a time."""

    def __init__(self, playable: Playable) -> None:
        if tuple(playable.seats) != (None,):
            seats = ", ".join(map(str, playable.seats))
            raise UsageError(f"a game of {seats} is served seat by seat; add --env-options seat=NAME")
        self._playable = playable
        machine = playable.machine if isinstance(playable, ByRule) else playable
        self._format = machine.spec.author.format if isinstance(machine, Machine) else formats.DEFAULT
        seat = playable.seat if isinstance(playable, ByRule) else None
        self.schemas = machine.spec.offers[seat].schemas if isinstance(machine, Machine) else ()
        names = {schema["function"]["name"] for schema in self.schemas}
        self.reset_name, self.submit_name = (
            name if name not in names else f"episode_{name}" for name in ("reset", "submit")
        )
        self._state = _BEGIN

    def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        """Run a call of the client: begin an episode, submit the answer, or take a turn with a tool."""
        if name == self.reset_name:
            return self._reset(arguments)
        if self._state:
            return CallResult(self._state.format(self.reset_name), failed=True)
        if name != self.submit_name:
            return self._act(formats.get(self._format).render([formats.ParsedCall(name, dict(arguments))]))
        answer = arguments.get("answer")
        if not isinstance(answer, str):
            return CallResult(f"wrong arguments for {name}: expected answer, a text", failed=True)
        return self._act(answer)

    def close(self) -> None:
        """Drop the running episode, and release the machine."""
        release(self._playable)
        self._playable.close()

    def _reset(self, arguments: Mapping[str, Any]) -> CallResult:
        limits = {"task": self._playable.task_count, "seed": 2**31}
        numbers: dict[str, int | None] = {}
        for name, limit in limits.items():
            value = numbers[name] = arguments.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit):
                return CallResult(
                    f"{name} is {value!r:.80}; expected a whole number from 0 to {limit - 1}", failed=True
                )
        release(self._playable)
        _, start = draw_start(None, numbers["seed"], numbers["task"], self._playable.task_count)
        self._state = ""
        return self._result(settle(self._playable, self._playable.open({None: start}, slots={}))[None])

    def _act(self, text: str) -> CallResult:
        return self._result(settle(self._playable, self._playable.act(None, text))[None])

    def _result(self, event: Event) -> CallResult:
        text = "\n\n".join(str(message.get("content") or "") for message in event.messages)
        if event.ending is None:
            return CallResult(text, failed=text.startswith("Error: "))
        self._state = _OVER
        if event.ending is Ending.BROKEN:
            return CallResult(f"{text}\n\nThe episode broke and has no reward: {event.fault}".strip(), True, event)
        parts = ", ".join(f"{name} {value:g}" for name, value in event.parts.items())
        over = f"The episode is over ({event.ending}): reward {event.reward:g} ({parts})"
        return CallResult(f"{text}\n\n{over}".strip(), False, event)


class ServedEnvironment:
    """Episodes of all clients of a server."""

    def __init__(self, env_id: str, options: Mapping[str, Any]) -> None:
        self.name = env_id.rpartition(":")[2]
        self._make = playables(env_id, options)
        self._episodes: OrderedDict[str, tuple[ServedEpisode, asyncio.Lock]] = OrderedDict()
        self._first = ServedEpisode(self._make())

    def server(self) -> "Server[Any]":
        """Return the server of the MCP SDK, with the environment's tools, `reset` and `submit`."""
        try:
            from mcp import types
            from mcp.server import Server
        except ImportError as error:
            raise MissingExtra("mcp", "mcp", "serving an environment over MCP") from error

        async def listed(context: Any, parameters: Any) -> types.ListToolsResult:
            return types.ListToolsResult(
                tools=[
                    types.Tool(
                        name=function["name"], description=function["description"], input_schema=function["parameters"]
                    )
                    for function in self._offered()
                ]
            )

        async def called(context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
            request = context.request
            session = "" if request is None else request.headers.get("mcp-session-id", "")
            result = await self._call(session, parameters.name, parameters.arguments or {})
            data = None if result.ended is None else _ending(result.ended)
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=result.text)],
                structured_content=data,
                is_error=result.failed,
            )

        return Server(
            f"palaestra: {self.name}",
            version=palaestra.__version__,
            instructions=_HOW.format(reset=self._first.reset_name, submit=self._first.submit_name),
            on_list_tools=listed,
            on_call_tool=called,
        )

    def close(self) -> None:
        """Drop all episodes."""
        for episode, _ in self._episodes.values():
            episode.close()
        self._first.close()

    async def _call(self, session: str, name: str, arguments: Mapping[str, Any]) -> CallResult:
        if session not in self._episodes:
            episode = ServedEpisode(self._make()) if self._episodes else self._first
            self._episodes[session] = (episode, asyncio.Lock())
        self._episodes.move_to_end(session)
        episode, turn = self._episodes[session]
        async with turn:
            try:
                return await asyncio.to_thread(episode.call, name, arguments)
            except PalaestraError as error:  # An error of the environment; the client sees it.
                return CallResult(str(error), failed=True)
            finally:
                await self._drop_oldest()

    async def _drop_oldest(self) -> None:
        while len(self._episodes) > MAX_EPISODES:
            _, (episode, turn) = self._episodes.popitem(last=False)
            async with turn:
                await asyncio.to_thread(episode.close)

    def _offered(self) -> Iterator[Mapping[str, Any]]:
        first = self._first
        yield from (schema["function"] for schema in first.schemas)
        number = {"type": "integer", "minimum": 0}
        yield {
            "name": first.reset_name,
            "description": _RESET,
            "parameters": {"type": "object", "properties": {"task": number, "seed": number}},
        }
        answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        yield {"name": first.submit_name, "description": _SUBMIT, "parameters": answer}


def _ending(event: Event) -> dict[str, Any]:
    """Return the ending of an episode as data for programs."""
    return {"ending": str(event.ending), "reward": event.reward, "parts": dict(event.parts)}


@contextmanager
def served(env_id: str, options: Mapping[str, Any]) -> Iterator["Server[Any]"]:
    """Yield a server of this environment; its episodes are dropped at the end of the block."""
    environment = ServedEnvironment(env_id, options)
    try:
        yield environment.server()
    finally:
        environment.close()


async def over_pipes(server: "Server[Any]") -> None:
    """Serve requests on standard input and output until the input ends."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def over_http(server: "Server[Any]", host: str, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve requests until interrupted. `ready` is called with the server's address; with port 0, a free port is
    used."""
    app: Any = server.streamable_http_app(host=host)
    app = guarded(app, token) if token else app
    listen(app, host, port, connections=_CONNECTIONS, ready=lambda url: ready(f"{url}/mcp"))


def guarded(app: Any, token: str) -> Any:
    """Return an application that answers only clients with the token; others get the status 401."""
    expected = f"Bearer {token}".encode()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            actual = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(actual, expected):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": json.dumps({"error": "a wrong token"}).encode()})
                return
        await app(scope, receive, send)

    return guard
