"""A server of chat completions on loopback that does what a test tells it: answer, lie, stall, hang up.

`behave(seen)` gives a `Reply` for each request, or an async function of the connection's writer that does as it likes.
"""

import asyncio
import inspect
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palaestra.formats import ParsedCall, hermes


@dataclass
class Seen:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    data: bytes

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads(self.data)


@dataclass
class Reply:
    """What goes back; a body that is no bytes is written as JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = {"Content-Type": "application/json", "Content-Length": str(len(body))} | self.headers
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"HTTP/1.1 {self.status} Because\r\n{head}\r\n".encode() + body


def said(text="fine", calls=(), finish="stop", usage=None, **more):
    """The usual answer. `calls` are pairs of a name and the text of its arguments."""
    message = {"role": "assistant", "content": text, **more}
    if calls:
        message["tool_calls"] = [
            {"id": f"x{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    document = {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return Reply(document if usage is None else document | {"usage": usage})


def error(status, message, **more):
    return Reply({"error": {"message": message, **more}}, status)


def replying(*replies):
    """A server that behaves one way for each of the first requests, and the last way from then on."""
    left = [*replies]
    return FakeServer(lambda seen: left.pop(0) if len(left) > 1 else left[0])


def demonstrated(rule, native=True):
    """Behave as a model that plays by an environment's demonstrator, in either form of the wire."""

    def behave(seen):
        if seen.path.endswith("/models"):
            return Reply({"object": "list", "data": [{"id": "demo"}]})
        messages = seen.asked["messages"]
        if not native:
            messages = [m for message in messages for m in _results(message)]
        turn = hermes.parse(rule(messages, np.random.default_rng(0)))
        calls = [call for call in turn.calls if isinstance(call, ParsedCall)]
        if not native:
            return said(turn.content + hermes.render(calls))
        return said(turn.content, [(call.name, json.dumps(call.arguments)) for call in calls])

    return behave


def _results(message):
    """Tool results that a user's message tells, as messages of their own."""
    if message["role"] != "user" or not message["content"].startswith("Result"):
        return [message]
    parts = re.split(r"(?:\A|\n\n)Result of \w+:\n", message["content"])[1:]
    return [{"role": "tool", "content": part} for part in parts]


@contextmanager
def nobody() -> Iterator[str]:
    """The base URL of a server that is not there. Its port is held: a free one may soon be that of another server."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/v1"


class FakeServer:
    """Runs on a thread of its own while the block lasts; leaves no socket behind."""

    def __init__(self, behave: Callable[[Seen], Any], port: int = 0) -> None:
        self.behave, self.port = behave, port
        self.seen: list[Seen] = []
        self.busy = self.peak = 0
        """Requests that are being answered, now and at most."""
        self.hung_up = threading.Event()
        """Set when a client has closed a connection before it had its answer."""
        self.crashes: list[BaseException] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def questions(self) -> list[dict[str, Any]]:
        return [seen.asked for seen in self.seen if seen.method == "POST"]

    def __enter__(self) -> "FakeServer":
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *problem: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.crashes == []

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        await asyncio.sleep(0.001)  # asyncio would lose the socket of a connection accepted just before `close`.
        server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        asked = False
        try:
            while await self._answer(reader, writer, asked):
                asked = True
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.hung_up.set()
        except Exception as crash:
            self.crashes.append(crash)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
            del self._open[task]

    async def greet_tls(self, writer: asyncio.StreamWriter) -> None:
        """What a plain server says to a client that expects TLS."""
        writer.write(Reply(b"plain HTTP was expected", 400).encoded())
        await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bool) -> bool:
        """One request, the first or one that is `asked` after others; False when the connection is over."""
        try:
            first = await reader.readexactly(1)
            if first == b"\x16":  # Somebody speaks TLS.
                await self.greet_tls(writer)
                return False
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError as gone:
            if gone.partial or not asked:  # Not just between two requests: a slow client's time may end before it asks.
                self.hung_up.set()
            return False
        method, path, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        seen = Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.seen.append(seen)
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        watch = asyncio.ensure_future(reader.read(1))  # Ends when the client hangs up.
        watch.add_done_callback(lambda done: done.cancelled() or self.hung_up.set())
        try:
            reply = self.behave(seen)
            if inspect.isawaitable(reply):
                reply = await reply
            if isinstance(reply, Reply):
                writer.write(reply.encoded())
                await writer.drain()
                return True
            await reply(writer)
            return False
        finally:
            self.busy -= 1
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
