"""The HTTP server of a sandbox for other machines: `serve` answers until it is stopped, and then ends every session.

Clients need the token, which is compared in constant time and never logged. Without a token the server listens only on
this machine, and refuses a Host header that names another machine; otherwise a web page whose name was made to point to
this machine could use the server. Requests must have a content type that browsers do not send. Bodies have a largest
size and a deadline. Traffic is encrypted only if a certificate is given. `listening` handles connections, `hosting` the
sessions.
"""

import asyncio
import contextlib
import hmac
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from palaestra.envs.sandboxes.remote.admission import Full, ServiceLimits
from palaestra.envs.sandboxes.remote.connection import PATIENCE_HEADER, TOKEN_ENV
from palaestra.envs.sandboxes.remote.hosting import Hosting
from palaestra.envs.sandboxes.remote.listening import listen
from palaestra.envs.sandboxes.remote.messages import CONTENT_TYPE, FRAME_BYTES, is_name, largest_frame, unpack
from palaestra.envs.sandboxes.runner.wire import FrameError, pack
from palaestra.envs.sandboxes.sandbox import Sandbox
from palaestra.errors import MissingExtra, PalaestraError, UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

log = logging.getLogger("palaestra.sandboxes")

READ_SECONDS = 30.0
"""Seconds in which the body of a request must have arrived."""
SHORTEST_TOKEN = 16
_RETRY_AFTER = 1
_MOST_PATIENCE = 1e6


def application(sandbox: Sandbox, service: ServiceLimits, token: str = "", local: bool = True) -> "Starlette":
    """Return the ASGI application.

    `local` is True if only this machine can reach the server, which is required without a token.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "serving a sandbox") from error
    if not token and not local:
        raise UsageError(f"a server that other machines reach needs a token of {SHORTEST_TOKEN} or more characters")
    front = _SandboxHTTPApp(sandbox, service, token)

    @contextlib.asynccontextmanager
    async def lifespan(_: "Starlette") -> AsyncIterator[None]:
        yield
        await front.hosting.close()

    routes = [
        Route("/v2/capabilities", front.capabilities, methods=["GET"]),
        Route("/v2/{session}/{request}", front.request, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


class _SandboxHTTPApp:
    """The HTTP endpoints of a sandbox server."""

    def __init__(self, sandbox: Sandbox, service: ServiceLimits, token: str) -> None:
        self.hosting = Hosting(sandbox, service)
        self._token = token.encode()
        limits = self.hosting.limits
        max_bytes = largest_frame(limits)
        if max_bytes - limits.scratch_bytes > FRAME_BYTES:  # Many files can come in several requests, a program cannot.
            raise UsageError(
                f"code_bytes is {limits.code_bytes:,} and file_bytes {limits.file_bytes:,}, but a program and its "
                f"stdin come in one request, of which none has more than {FRAME_BYTES:,} bytes; lower them"
            )
        self._most_bytes = min(max_bytes, FRAME_BYTES)

    async def capabilities(self, request: "Request") -> "Response":
        """Return what the backend enforces, its limits, and how full this server is."""
        from starlette.responses import JSONResponse

        if refusal := self._refused(request):
            return refusal
        hosting = self.hosting
        content = {"capabilities": asdict(hosting.sandbox.capabilities()), "limits": asdict(hosting.limits)}
        return JSONResponse(content | {"figures": hosting.figures()})

    async def request(self, request: "Request") -> "Response":
        """Answer one request; stop waiting for the answer if the client disconnects."""
        if refusal := self._refused(request):
            return refusal
        if request.headers.get("content-type") != CONTENT_TYPE:
            return _error(415, "usage", f"expected a content type of {CONTENT_TYPE}")
        try:
            async with asyncio.timeout(READ_SECONDS):
                data = await read_body(request, self._most_bytes)
        except TimeoutError:
            return _error(408, "broken", f"the request did not come within {READ_SECONDS:g} s")
        if data is None:
            return _error(413, "usage", f"the request is larger than the {self._most_bytes:,} bytes that it may have")
        work = asyncio.create_task(self._answer(request, data))
        gone = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else _error(499, "broken", "nobody waits for the answer")
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, request: "Request", data: bytes) -> "Response":
        """Return the answer to a request, or its error."""
        session, name = request.path_params["session"], request.path_params["request"]
        try:
            if not is_name(session) or not is_name(name):
                raise UsageError("a session and a request are named by 16 to 64 letters and digits")
            patience = float(request.headers.get(PATIENCE_HEADER, "0"))
            if not 0 <= patience < _MOST_PATIENCE:
                raise UsageError(f"{PATIENCE_HEADER} is {patience}; expected seconds from 0 to {_MOST_PATIENCE:g}")
            frame = unpack(data, self._most_bytes)
            return _response(200, await self.hosting.answer(name, session, *frame, patience))
        except Full:
            figures = ", ".join(f"{name} {value}" for name, value in self.hosting.figures().items())
            return _error(429, "full", f"the server is full: {figures}")
        except FrameError as error:
            return _error(400, "usage", f"the request has {error}")
        except (UsageError, ValueError) as error:
            return _error(400, "usage", str(error))
        except PalaestraError as error:
            return _error(500, "broken", str(error))
        except TimeoutError:
            return _error(500, "broken", "the backend did not answer in time")
        except OSError as error:
            if error.errno is None:
                return _error(500, "broken", f"the server's backend failed: {type(error).__name__}: {error}")
            return _error(409, "os", error.strerror or "", errno=error.errno)
        except Exception as error:  # The client learns of the backend's defect; the server continues for the others.
            log.exception("a request failed")
            return _error(500, "broken", f"the server's backend failed: {type(error).__name__}")

    def _refused(self, request: "Request") -> "Response | None":
        """Return the answer that refuses a request which may not use the server; None if it may."""
        refusal = refused(request, self._token)
        return _error(refusal[0], "usage", refusal[1]) if refusal else None


def refused(request: "Request", token: bytes) -> tuple[int, str] | None:
    """Return the status and the reason of a refusal, or None.

    With a token, a wrong token is refused; without one, a request whose Host names another machine.
    """
    if token:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if not hmac.compare_digest(credentials.strip().encode(), token) or scheme.lower() != "bearer":
            return 401, "a wrong token, or none"
    elif not is_this_machine(urlsplit(f"//{request.headers.get('host', '')}").hostname or ""):
        return 403, "without a token only names of this machine are answered"
    return None


async def read_body(request: "Request", max_bytes: int) -> bytes | None:
    """Return the body, or None if it has more than `max_bytes` bytes."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > max_bytes:
            return None
    return bytes(data)


async def _disconnected(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(status: int, frame: bytes) -> "Response":
    from starlette.responses import Response

    headers = {"Retry-After": str(_RETRY_AFTER)} if status == 429 else None
    return Response(frame, status, headers, CONTENT_TYPE)


def _error(status: int, kind: str, text: str, **more: int) -> "Response":
    return _response(status, pack({"error": {"kind": kind, "text": text[:4000], **more}}))


def is_this_machine(host: str) -> bool:
    """Return True if a host name means this machine and no other machine can reach it."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def find_token(variable: str, host: str, usual: str = TOKEN_ENV) -> str:
    """Return the token in an environment variable; "" if it is not set and only this machine can reach the server."""
    token = os.environ.get(variable, "").strip() if variable else ""
    if not token and is_this_machine(host) and variable in ("", usual):
        return ""
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"{variable or 'the variable that token-env names'} holds no token of {SHORTEST_TOKEN} or more characters, "
            f"which a server at {host} needs; set it on both ends, "
            f'for example with: export {usual}="$(openssl rand -hex 16)"'
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
    """Answer requests until SIGINT or SIGTERM. `ready` is called with the address; port 0 means any free port."""
    service = service or ServiceLimits()
    listen(
        application(sandbox, service, token, is_this_machine(host)),
        host,
        port,
        connections=service.most_sessions + service.most_running + service.most_waiting + 64,
        certificate=certificate,
        key=key,
        ready=ready,
    )
