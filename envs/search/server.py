"""Serves an index to other computers and other trainers, in Search-R1's format: POST /retrieve.

A request has `queries` (or one `query`), `topk` and `return_scores`. The answer is lists of documents, whose `contents`
begin with the title in quotes. GET /document?id= returns a whole document. Access and the limits of bodies are as in
`palaestra serve sandbox`. Left out: anything that changes the index.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from palaestra.envs.sandboxes.remote.listening import listen
from palaestra.envs.sandboxes.remote.server import READ_SECONDS, read_body, refused
from palaestra.envs.search.corpus import valid_text
from palaestra.envs.search.index import Document, Hit, Index
from palaestra.errors import MissingExtra, PalaestraError, ToolError

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

BODY_BYTES = 4 * 2**20
MAX_QUERIES = 1024
MAX_HITS = 100
_CONNECTIONS = 1024


def application(index: Index, token: str = "") -> "Starlette":
    """Return the ASGI application. Without a token, it answers only requests that name this computer as the host."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra("starlette", "serve", "serving an index") from error
    app = _SearchHTTPApp(index, token.encode())
    routes = [
        Route("/retrieve", app.guarded(app.retrieve), methods=["POST"]),
        Route("/document", app.guarded(app.document), methods=["GET"]),
    ]
    return Starlette(routes=routes)


def serve(index: Index, host: str, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve the index until SIGINT or SIGTERM. `ready` is called when the server listens."""
    listen(application(index, token), host, port, connections=_CONNECTIONS, ready=ready)


class _SearchHTTPApp:
    """The HTTP handlers of the index."""

    def __init__(self, index: Index, token: bytes) -> None:
        self.index, self._token = index, token

    def guarded(self, answer: "Callable[[Request], Awaitable[Any]]") -> "Callable[[Request], Awaitable[Response]]":
        """Return a handler that answers permitted requests, and puts the reason of an error into `detail`."""
        from starlette.responses import JSONResponse

        async def respond(request: "Request") -> "Response":
            status, detail = refused(request, self._token) or (200, "")
            try:
                if not detail:
                    return JSONResponse(await answer(request))
            except _Wrong as error:
                status, detail = error.status, str(error)
            except ToolError as error:
                status, detail = 404, str(error)
            except PalaestraError as error:
                status, detail = 500, str(error)
            return JSONResponse({"detail": detail}, status)

        return respond

    async def retrieve(self, request: "Request") -> dict[str, Any]:
        """Return the documents of each query."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise _Wrong(415, "expected a content type of application/json")
        try:
            async with asyncio.timeout(READ_SECONDS):
                body = await read_body(request, BODY_BYTES)
        except TimeoutError:
            raise _Wrong(408, f"the request did not come within {READ_SECONDS:g} s") from None
        if body is None:
            raise _Wrong(413, f"the request has more than {BODY_BYTES:,} bytes")
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise _Wrong(422, 'expected a JSON object such as {"queries": ["..."], "topk": 3, "return_scores": true}')
        single = "queries" not in fields and isinstance(fields.get("query"), str)
        queries = [fields["query"]] if single else fields.get("queries")
        count = fields.get("topk") or 3
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise _Wrong(422, "queries is no list of texts")
        if len(queries) > MAX_QUERIES or not isinstance(count, int) or not 1 <= count <= MAX_HITS:
            raise _Wrong(422, f"at most {MAX_QUERIES} queries go in one request, and topk is from 1 to {MAX_HITS}")
        hits_by_query = await self.index.search_many([valid_text(query) for query in queries], count)
        to_json = _scored if fields.get("return_scores") else _document
        return {"result": [[to_json(hit) for hit in hits] for hits in hits_by_query]}

    async def document(self, request: "Request") -> dict[str, Any]:
        """Return the whole document of the requested id."""
        return _document(await self.index.get(request.query_params.get("id", "")))


class _Wrong(Exception):
    """Raised for a request that cannot be answered."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _document(document: Document | Hit) -> dict[str, Any]:
    return {"id": document.id, "contents": f'"{document.title}"\n{document.text}', "url": document.url}


def _scored(hit: Hit) -> dict[str, Any]:
    return {"document": _document(hit), "score": hit.score}
