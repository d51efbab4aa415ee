"""A sandbox for other machines: `serve` answers until it is stopped, and ends every session with it.

Who may use it: whoever has the token, which is compared in constant time and never logged. Without a token it listens
on this machine alone, answers only to a Host of this machine (or a web page whose name was made to point here could
use it) and takes only a kind of content that browsers do not send. Bodies have a largest size and a deadline. Left out:
encryption, unless a certificate is given; what a session is (`places`).
"""

import asyncio
import contextlib
import hmac
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from palaestra.endpoint.reply import Unreadable
from palaestra.envs.sandboxes.remote.places import Gone, Places
from palaestra.envs.sandboxes.remote.turnstile import Full, ServiceLimits
from palaestra.envs.sandboxes.remote.wire import (
    BODY_BYTES,
    CONTENT_TYPE,
    OPERATIONS,
    PROTOCOL,
    TOKEN_ENV,
    most_request,
    pack,
    unpack,
)
from palaestra.envs.sandboxes.sandbox import Sandbox
from palaestra.errors import MissingExtra, PalaestraError, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("palaestra.sandboxes")

READ_SECONDS = 30.0
"""In which a request's body must have come."""
SHORTEST_TOKEN = 16
_RETRY_AFTER = 1
_STOPPING = 2
"""Seconds in which running requests may end when the server stops."""


def application(sandbox: Sandbox, service: ServiceLimits, token: str = "", local: bool = True) -> "Starlette":
    """The ASGI application. `local` is a server that only this machine reaches; without a token it must be."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "serving a sandbox") from error
    if not token and not local:
        raise UsageError(f"a server that other machines reach needs a token of {SHORTEST_TOKEN} or more characters")
    desk = _Desk(sandbox, service, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: "Starlette") -> AsyncIterator[None]:
        yield
        await desk.places.close()

    routes = [
        Route("/v1/capabilities", desk.capabilities, methods=["GET"]),
        Route("/v1/{operation}", desk.operate, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _Desk:
    def __init__(self, sandbox: Sandbox, service: ServiceLimits, token: str) -> None:
        self.places = Places(sandbox, service)
        self._token = token.encode()
        limits = self.places.limits
        most = most_request(limits)
        if most - limits.scratch_bytes > BODY_BYTES:  # Many files can come in several requests, a program cannot.
            raise UsageError(
                f"code_bytes is {limits.code_bytes:,} and file_bytes {limits.file_bytes:,}, but a program and its "
                f"stdin come in one request, of which none has more than {BODY_BYTES:,} bytes; lower them"
            )
        self._most_bytes = min(most, BODY_BYTES)

    async def capabilities(self, request: "Request") -> "Response":
        """What the backend enforces, its limits, and how full this server is."""
        refusal = self._refused(request)
        if refusal is not None:
            return refusal
        sandbox = self.places.sandbox
        header = {
            "protocol": PROTOCOL,
            "capabilities": asdict(sandbox.capabilities()),
            "limits": asdict(self.places.limits),
        }
        return _response(200, header | {"figures": self.places.figures()})

    async def operate(self, request: "Request") -> "Response":
        """One operation, for as long as somebody waits for it."""
        operation = request.path_params["operation"]
        refusal = self._refused(request)
        if refusal is not None:
            return refusal
        if operation not in OPERATIONS:
            return _error(404, "usage", f"there is no operation {operation!r}; known: {', '.join(OPERATIONS)}")
        if request.headers.get("content-type") != CONTENT_TYPE:
            return _error(415, "usage", f"expected a content type of {CONTENT_TYPE}")
        try:
            async with asyncio.timeout(READ_SECONDS):
                header, body = unpack(await self._read(request))
        except TimeoutError:
            return _error(408, "broken", f"the request did not come within {READ_SECONDS:g} s")
        except _TooLarge:
            return _error(413, "usage", f"the request is larger than the {self._most_bytes:,} bytes that it may have")
        except Unreadable as error:
            return _error(400, "usage", f"the request has {error}")
        return await self._work(request, operation, header, body)

    async def _work(self, request: "Request", operation: str, header: Mapping[str, Any], body: bytes) -> "Response":
        work = asyncio.create_task(self.places.answer(operation, header, body))
        gone = asyncio.create_task(_disconnected(request.receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return _error(499, "broken", "nobody waits for the answer")
            return _response(200, *await work)
        except Full:
            told = ", ".join(f"{name} {value}" for name, value in self.places.figures().items())
            return _error(429, "full", f"the server is full: {told}", {"Retry-After": str(_RETRY_AFTER)})
        except Gone as error:
            return _error(404, "broken", str(error))
        except UsageError as error:
            return _error(400, "usage", str(error))
        except Unreadable as error:
            return _error(400, "usage", f"the request has {error}")
        except PalaestraError as error:
            return _error(500, "broken", str(error))
        except TimeoutError:
            return _error(500, "broken", "the backend did not answer in time")
        except OSError as error:
            return _os_error(error)
        except Exception as error:  # A backend's defect is told to the client; the server serves the others.
            log.exception("%s failed", operation)
            return _error(500, "broken", f"the server's backend failed: {type(error).__name__}")
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    def _refused(self, request: "Request") -> "Response | None":
        """Whoever has no token is told so, whatever the request was."""
        if self._token:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(given.strip().encode(), self._token) or scheme.lower() != "bearer":
                return _error(401, "usage", "a wrong token, or none")
        elif not is_this_machine(urlsplit(f"//{request.headers.get('host', '')}").hostname or ""):
            return _error(403, "usage", "without a token only names of this machine are answered")
        return None

    async def _read(self, request: "Request") -> bytes:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self._most_bytes:
                raise _TooLarge
        return bytes(data)


class _TooLarge(Exception):
    """A body beyond its largest size."""


async def _disconnected(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _response(
    status: int, header: Mapping[str, Any], body: bytes = b"", more: Mapping[str, str] | None = None
) -> "Response":
    from starlette.responses import Response

    return Response(pack(header, body), status, dict(more or {}), CONTENT_TYPE)


def _error(status: int, kind: str, text: str, more: Mapping[str, str] | None = None) -> "Response":
    return _response(status, {"error": {"kind": kind, "text": text[:4000]}}, more=more)


def _os_error(error: OSError) -> "Response":
    if error.errno is None:
        return _error(500, "broken", f"the server's backend failed: {type(error).__name__}: {error}")
    told = {"kind": "os", "errno": error.errno, "text": error.strerror or "", "path": error.filename}
    if not isinstance(error.filename, str):
        del told["path"]
    return _response(409, {"error": told})


def is_this_machine(host: str) -> bool:
    """True for a name of this machine that no other machine reaches."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def find_token(variable: str, host: str) -> str:
    """The token in an environment variable; "" only where nobody but this machine reaches the server."""
    token = os.environ.get(variable, "").strip() if variable else ""
    if not token and is_this_machine(host) and variable in ("", TOKEN_ENV):
        return ""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"{variable or 'the variable that token-env names'} holds no token of {SHORTEST_TOKEN} or more characters, "
            f"which a server at {host} needs; set it on both ends, "
            'for example with: export PALAESTRA_SANDBOX_TOKEN="$(openssl rand -hex 16)"'
        )
    return token


def serve(
    sandbox: Sandbox,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str = "",
    service: ServiceLimits | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Answer until SIGINT or SIGTERM. `ready` is told the address; port 0 takes a free one."""
    service = service or ServiceLimits()
    app = application(sandbox, service, token, is_this_machine(host))
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve", "serving a sandbox") from error
    with _listen(host, port) as listening:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws="none",
            lifespan="on",
            limit_concurrency=service.most_sessions + service.most_running + service.most_waiting + 64,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_STOPPING,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
            raise UsageError(f"the certificate {certificate} cannot be used: {error}") from error
        shown = f"[{host}]" if ":" in host else host
        ready(f"{'https' if certificate else 'http'}://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
    except (OSError, OverflowError) as error:
        raise UsageError(f"{host} port {port} cannot be used: {error}; port 0 takes a free one") from error
