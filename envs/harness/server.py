"""The HTTP server that harnesses ask: one for each event loop, on loopback, with a secret path for each episode.

    POST /TOKEN/v1/chat/completions    a turn          GET /TOKEN/v1/models    the one model
    POST /TOKEN/v1/responses           the same, as a response

Left out: the format of requests and answers (`wire`), and what they mean (`world`).
"""

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from palaestra.envs.harness.author import Model
from palaestra.envs.harness.clients import close_pool
from palaestra.envs.harness.responses import events, from_chat, to_chat
from palaestra.envs.harness.wire import MODEL, Refused, chunks, completion, read, turn_request
from palaestra.envs.harness.world import Turn, World
from palaestra.errors import MissingExtra

BODY_BYTES = 32 * 2**20
_QUEUED = 2048
_ENDED = 4096
"""Number of ended episodes whose paths are answered by 410; older ones get 404."""
_START_SECONDS = 0.005
_MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}]}


class ModelServer:
    """The server of one event loop."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}
        self._ended: dict[str, None] = {}
        self._server: Any = None
        """The running server of uvicorn; None before it starts."""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_QUEUED)
        self._url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    async def serve(self) -> None:
        """Serve until the event loop ends, which cancels this."""
        try:
            import uvicorn
        except ImportError as error:
            self._socket.close()
            raise MissingExtra("uvicorn", "serve", "a harness") from error
        config = uvicorn.Config(
            self._answer, interface="asgi3", loop="none", lifespan="off", ws="none", log_config=None, access_log=False,
            proxy_headers=False, server_header=False, date_header=False, backlog=_QUEUED, timeout_keep_alive=75,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:  # The loop ends at once: what is open must be closed here.
            for server in getattr(self._server, "servers", ()):  # None where it was cancelled before it listened.
                server.close()
            for connection in list(self._server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            self._socket.close()
            close_pool(self._url)
            await asyncio.sleep(0)

    async def started(self, serving: "asyncio.Task[None]") -> None:
        """Return when the server listens; raise the error with which it ended before."""
        while self._server is None or not self._server.started:
            if serving.done():
                serving.result()
            await asyncio.sleep(_START_SECONDS)

    def open(self, world: World) -> Model:
        """Return the address of an episode."""
        self._worlds[world.token] = world
        return Model(f"{self._url}/{world.token}/v1", world.token)

    def close(self, world: World) -> None:
        """End the address of an episode."""
        if self._worlds.pop(world.token, None) is not None:
            self._ended[world.token] = None
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request: the application that uvicorn calls."""
        if scope["type"] != "http":
            return
        try:
            status, body, kind = await self._reply(scope, receive)
        except Refused as refused:
            status, body, kind = refused.status, json.dumps({"error": refused.body}).encode(), b"application/json"
        except asyncio.CancelledError:  # The loop ends.
            status, body, kind = 503, b"{}", b"application/json"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _reply(self, scope: Any, receive: Any) -> tuple[int, bytes, bytes]:
        _, token, *path = scope["path"].split("/", 2)
        world, route = self._worlds.get(token), "".join(path)
        if world is None:
            if token in self._ended:
                raise Refused(410, "this episode has ended", code="episode_over")
            raise Refused(404, "there is no such address; use the base_url that `run` was given", code="not_found")
        if scope["method"] == "GET" and route.startswith("v1/models"):
            return (
                200,
                json.dumps(_MODELS if route == "v1/models" else _MODELS["data"][0]).encode(),
                b"application/json",
            )
        if scope["method"] != "POST" or route not in ("v1/chat/completions", "v1/responses"):
            raise Refused(404, f"{scope['method']} /{route} is not served; ask /v1/chat/completions", code="not_found")
        body = await _body(receive)
        fields, is_response = read(body), route == "v1/responses"
        request = turn_request(to_chat(fields) if is_response else fields)
        turns = world.ask(request, body)
        try:
            replies = await _replies(turns, receive)
        except BaseException:  # A hang-up or the end of the loop: the turns wait for the same request again.
            world.desert(turns)
            raise
        world.delivered(turns)
        answer = completion([reply[0] for reply in replies], [reply[1] for reply in replies])
        if is_response:
            answer = from_chat(answer)
        if request.stream:
            stream = events(answer) if is_response else chunks(answer, request.stream_usage)
            return 200, stream, b"text/event-stream"
        return 200, json.dumps(answer).encode(), b"application/json"


async def _body(receive: Any) -> bytes:
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(499, "the client has hung up")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise Refused(413, f"the request has more than {BODY_BYTES:,} bytes")
        more = message.get("more_body", False)
    return b"".join(parts)


async def _replies(turns: Sequence[Turn], receive: Any) -> list[Any]:
    """Return the replies to these turns; raise Refused if the episode or the connection ends before."""
    gone = asyncio.ensure_future(receive())
    try:
        for turn in turns:
            await asyncio.wait((turn.reply, gone), return_when=asyncio.FIRST_COMPLETED)
            if not turn.reply.done():
                raise Refused(499, "the client has hung up")
    finally:
        gone.cancel()
    replies = [turn.reply.result() for turn in turns]
    for reply in replies:
        if isinstance(reply, Refused):
            raise reply
    return replies


_servers: "WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[ModelServer, asyncio.Task[None]]]" = WeakKeyDictionary()


async def server_here() -> ModelServer:
    """Return the server of the running event loop; it starts at the first call."""
    loop = asyncio.get_running_loop()
    if loop not in _servers or _servers[loop][1].done():
        server = ModelServer()
        _servers[loop] = server, loop.create_task(server.serve(), name="palaestra-harness-server")
    server, serving = _servers[loop]
    await server.started(serving)
    return server
