"""Serve the live viewer: a page, reachable only from this computer, that shows new steps as they are written.

The server handles untrusted text, so it can do little: it listens on 127.0.0.1, answers GET only, and has a few fixed
paths, none of which names a file. Every path begins with a secret word, because other users of this computer can reach
127.0.0.1 too. The Host header must be that of the server, against DNS rebinding by web pages. Each connection has one
request with a timeout, on its own thread.
"""

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.view.pages.episode_view import content, embedded, texts
from palaestra.trainers.view.pages.load_episodes import Collection
from palaestra.trainers.view.pages.page import policy, served

REQUEST_SECONDS = 20.0
"""Seconds for a request and its response; then the connection is closed."""
MOST_CONNECTIONS = 48
_REFRESH_SECONDS = 1.0
_SEARCH_SECONDS = 0.5
_MOST_EPISODES = 4000
_LONGEST_QUERY = 1000
_COUNTS = ("episodes", "metrics", "vocabulary")


class ViewerServer:
    """Server of a live page: `url` is its address, and `run` serves until `close`."""

    def __init__(self, paths: Sequence[Path], steps: frozenset[int] | None = None, port: int = 0) -> None:
        """Open the port; port 0 chooses a free one."""
        self.paths, self.steps = list(paths), steps
        # One tuple, replaced as a whole: a request must not get one collection with the number of another.
        self._reading = (Collection(self.paths, steps), 1)
        self.fault = ""
        self.word = secrets.token_urlsafe(18)
        try:
            self._server = _Server(("127.0.0.1", port), self)
        except (OSError, OverflowError) as error:
            raise UsageError(f"port {port} cannot be used: {error}; leave --port out for a free one") from error
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/{self.word}/"
        self._closed = threading.Event()

    def run(self) -> None:
        """Serve requests and read new data until `close` is called, or the thread is interrupted."""
        reader = threading.Thread(target=self._follow, name="palaestra-view", daemon=True)
        reader.start()
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._closed.set()
            self._server.server_close()
            reader.join(timeout=5)

    def close(self) -> None:
        """Stop the server. Call this from another thread than `run`."""
        self._server.shutdown()

    def state(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """Return the data that a page still lacks; all data if the files were replaced since its last request."""
        collection, generation = self._reading
        same = query.get("generation", [""])[0] == str(generation)
        episodes, metrics, words = (_count(query, name) if same else 0 for name in _COUNTS)
        state = collection.state(episodes, metrics, words, limit=_MOST_EPISODES)
        if self.fault:
            state["defects"].append({"file": str(self.paths[0]), "line": None, "reason": self.fault})
        return {**state, "live": True, "generation": generation}

    def episode(self, generation: str, number: str) -> dict[str, Any]:
        """Return the content of one episode, read from its file."""
        collection = self._of(generation)
        if not _is_number(number) or int(number) >= len(collection.places):
            raise LookupError("there is no such episode")
        return content(collection.places[int(number)].read())

    def search(self, generation: str, begin: str, text: str) -> dict[str, Any]:
        """Search episodes for a text, from number `begin` on, for half a second. `next` is where to continue."""
        collection, lowered, matches = self._of(generation), text.lower(), []
        at = int(begin) if _is_number(begin) else 0
        until = time.monotonic() + _SEARCH_SECONDS
        while at < len(collection.places) and time.monotonic() < until:
            if any(lowered in episode_text.lower() for episode_text in texts(collection.places[at].read())):
                matches.append(at)
            at += 1
        return {"found": matches, "next": at}

    def _of(self, generation: str) -> Collection:
        collection, current = self._reading
        if generation != str(current):
            raise LookupError("the run began anew; the page will follow")
        return collection

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                collection, generation = self._reading
                if collection.was_replaced():
                    collection = Collection(self.paths, self.steps)
                    self._reading = (collection, generation + 1)
                for _ in collection.news(settled=False):
                    if self._closed.is_set():
                        return
                self.fault = ""
            except (PalaestraError, OSError) as error:
                self.fault = f"it cannot be read just now: {error}"
            self._closed.wait(_REFRESH_SECONDS)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], viewer: ViewerServer) -> None:
        self.viewer = viewer
        self._deadlines: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind is not used, because it makes a DNS query for the host name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether a connection is accepted: each needs a thread, and the number of threads is limited."""
        return len(self._deadlines) < MOST_CONNECTIONS

    def process_request(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + REQUEST_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Shut down connections that are past their deadline, so that the next read or write of their thread fails."""
        now = time.monotonic()
        for request, deadline in list(self._deadlines.items()):
            if now > deadline:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    self._deadlines.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version, sys_version = "palaestra", ""

    def do_GET(self) -> None:
        port = self.server.viewer.port
        host = self.headers.get_all("Host") or []
        if host not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
            return self._text(421, "this server answers to 127.0.0.1 alone")
        parts = urlsplit(self.path)
        word, _, route = parts.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(word.encode("utf-8", "replace"), self.server.viewer.word.encode()):
            return self._text(404, "nothing is here; open the address that palaestra view printed")
        query = parse_qs(parts.query[: 4 * _LONGEST_QUERY], max_num_fields=8)
        try:
            return self._answer(route.split("/"), query)
        except LookupError as error:
            return self._text(404, str(error))
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            return self._text(409, f"it cannot be read: {error}")

    def _answer(self, route: list[str], query: dict[str, list[str]]) -> None:
        viewer = self.server.viewer
        match route:
            case [""]:
                return self._send(200, "text/html; charset=utf-8", served())
            case ["state"]:
                return self._json(viewer.state(query))
            case ["episode", generation, number]:
                return self._json(viewer.episode(generation, number))
            case ["search", generation, begin]:
                return self._json(viewer.search(generation, begin, query.get("q", [""])[0][:_LONGEST_QUERY]))
        return self._text(404, "nothing is here")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request with plain text; the library would send an HTML page."""
        self._text(405 if code == 501 else code, "this server answers GET only" if code == 501 else "bad request")

    def _json(self, value: Any) -> None:
        self._send(200, "application/json", embedded(value))

    def _text(self, code: int, text: str) -> None:
        self._send(code, "text/plain; charset=utf-8", text + "\n")

    def _send(self, code: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.close_connection = True
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy(connect="'self'") + "; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the path of every request holds the secret word."""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12


def _count(query: dict[str, list[str]], name: str) -> int:
    text = query.get(name, ["0"])[0]
    return int(text) if _is_number(text) else 0
