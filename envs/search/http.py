"""Client of any search engine with HTTP and JSON: a mapping describes its requests and its answers.

A first query is sent when the first episode begins. If there is no answer, the key is refused or the answer has no
results, `UsageError` is raised. Later, a failed request is repeated for `patience` seconds, and then `Broken` is
raised. The key comes from an environment variable and is never shown. Left out: caching answers (`remembered`), and the
mappings themselves (`mappings`).
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import Secret, address_of
from palaestra.endpoint.http import HttpClient, Response, RetryableError
from palaestra.envs.search.embedding import Embedder
from palaestra.envs.search.index import Document, Hit
from palaestra.envs.search.mappings import Form, at, fill, form_of, names_in
from palaestra.errors import Broken, ToolError, UsageError

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES = 16 * 2**20
TEXT_CHARS = 20_000
"""Maximum characters of a result's text; the rest is cut off."""
CHECK_SECONDS = 10.0
"""Seconds in which a server must answer the first query."""
_FIRST_WAIT = 0.25
_GRACE_SECONDS = 5.0
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
_REFUSED = (400, 413, 414, 422)
"""HTTP statuses of servers that refuse a query."""


class _Key(Secret):
    """A key that is sent in the header that the server expects."""

    __slots__ = ("_header",)

    def __init__(self, variable: str, header: str) -> None:
        super().__init__(variable)
        self._header = header

    def header(self) -> dict[str, str]:
        if self._header == "Authorization" or not self:
            return super().header()
        return {self._header: self._value}


class HttpSearch:
    """A client for callers on any event loop; its connections have a separate thread."""

    waits = True

    def __init__(
        self,
        url: str,
        mapping: str | Form | Mapping[str, Any],
        *,
        key_env: str = "",
        seconds: float = 10.0,
        patience: float = 20.0,
        at_once: int = 32,
        embedding: Mapping[str, Any] | None = None,
        version: str = "",
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`seconds` is the timeout of one try, `at_once` the maximum number of requests at the same time.

        `embedding` holds the options of an `Embedder`, for servers that take vectors. `version` is part of a cache's
        key: change it when the server's documents change. `transport` replaces the network.
        """
        for name, value in (("seconds", seconds), ("patience", patience), ("at_once", at_once)):
            if not 0 < value < float("inf"):
                raise UsageError(f"{name} is {value}; expected a number above 0")
        self.form: Form = form_of(mapping)
        needs_vector = "{vector}" in names_in((self.form.body, self.form.each))
        if needs_vector and embedding is None:
            raise UsageError("this server takes vectors; say which model makes them: embedding={'model': NAME}")
        self.embedder = Embedder(**embedding) if needs_vector and embedding is not None else None
        self.address = address_of(url, "url", "http://localhost:8888")
        self.version = f"{self.address} {version}"
        self.seconds, self.patience = seconds, patience
        kind = "application/x-ndjson" if self.form.body is None else "application/json"
        self._http = HttpClient(
            self.address, _Key(key_env, self.form.key_header), content_type=kind, purpose="a search server",
            transport=transport,
        )  # fmt: skip
        self._background = BackgroundLoop("search")
        self._free: asyncio.Semaphore | None = None
        self._at_once = int(at_once)

    @property
    def batch(self) -> int:
        """Return the maximum number of queries in one request."""
        return self.form.batch

    @property
    def trouble(self) -> str:
        """Return why the last request failed; "" if it succeeded."""
        return self._http.trouble

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def check(self) -> None:
        """Send a query. Raise UsageError if the server is dead, refuses the key, or does not fit the mapping."""
        patience = min(CHECK_SECONDS, self.patience)
        try:
            self._background.submit(self._search(["test"], 1, patience)).result(
                patience + self.seconds + _GRACE_SECONDS
            )
        except (Broken, ToolError, TimeoutError) as error:
            raise UsageError(f"the search server cannot be used: {error}") from None

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best hits of each query, in as few requests as the mapping allows."""
        hits: list[list[Hit]] = await self._outcome(self._all(list(queries), k), self.patience + self.seconds)
        return hits

    async def get(self, id: str) -> Document:
        """Return a document. Raise ToolError if the server returns no whole documents."""
        if not self.form.get:
            raise ToolError("this search engine gives no whole documents")
        document: Document = await self._outcome(self._document(id), self.patience + self.seconds)
        return document

    def close(self) -> None:
        """Close the connections and end their thread."""
        self._background.close(self._http.aclose())

    # Methods that run on the thread of the loop.

    async def _outcome(self, work: Any, seconds: float) -> Any:
        return await self._background.outcome(work, seconds + _GRACE_SECONDS, False)

    async def _all(self, queries: list[str], k: int) -> list[list[Hit]]:
        size = self.batch
        trips = [self._search(queries[at : at + size], k, self.patience) for at in range(0, len(queries), size)]
        return [hits for trip in await asyncio.gather(*trips) for hits in trip]

    async def _search(self, queries: list[str], k: int, patience: float) -> list[list[Hit]]:
        """Send queries in one request; return the hits of each query."""
        form = self.form
        values = [{"{query}": query, "{k}": min(k, form.max_results)} for query in queries]
        if self.embedder is not None:
            vectors = await asyncio.to_thread(self.embedder.queries, queries)
            values = [entry | {"{vector}": vector} for entry, vector in zip(values, vectors.tolist(), strict=True)]
        answer = await self._fetch(*self._request(values), patience)
        answers = at(answer, form.answers) if form.each is not None else [answer]
        if not isinstance(answers, list) or len(answers) != len(queries):
            raise self._strange(f"no list of {len(queries)} answers at {form.answers!r}")
        return [self._hits(entry, query, k) for entry, query in zip(answers, queries, strict=True)]

    def _request(self, values: list[dict[str, Any]]) -> tuple[str, bytes | None]:
        """Return the path and the body of one request; None means a request without a body."""
        form = self.form
        if form.each is not None:
            each = [fill(form.each, entry) for entry in values]
            if form.body is None:
                return form.path, "".join(f"{json.dumps(line)}\n" for lines in each for line in lines).encode()
            return form.path, json.dumps(fill(form.body, values[0] | {"{each}": each})).encode()
        body = fill(form.body, values[0])
        if form.method == "GET":
            return f"{form.path}?{urlencode(body, errors='replace')}", None
        return form.path, json.dumps(body).encode()

    async def _document(self, id: str) -> Document:
        path = self.form.get.replace("{id}", quote(id, safe="", errors="replace"))
        answer = at(await self._fetch(path, None, self.patience, missing=id), self.form.got)
        hits = self._hits_of([answer], id)
        if not hits:
            raise ToolError(f"there is no document {id[:80]!r}")
        return Document(id, hits[0].title, hits[0].text, hits[0].url)

    async def _fetch(self, path: str, body: bytes | None, patience: float, missing: str = "") -> Any:
        """Send a request and return the JSON of its answer; retry for `patience` seconds if that may help."""
        if self._free is None:
            self._free = asyncio.Semaphore(self._at_once)

        async def attempt() -> Any:
            try:
                async with asyncio.timeout(self.seconds):
                    return self._read(await self._http.send(path, body, ANSWER_BYTES), missing)
            except TimeoutError:
                raise RetryableError(f"no answer within {self.seconds:g} s") from None

        async with self._free:
            return await self._http.retried(attempt, patience, _FIRST_WAIT, seconds=self.seconds)

    def _read(self, response: Response, missing: str) -> Any:
        """Return the JSON of an answer, or raise the error that fits its status."""
        status = response.status
        beginning = " ".join(response.body[:300].decode("utf-8", "replace").split())
        details = f"it answered {status}: {self._http.redacted(beginning) or 'nothing'}"
        if status in (401, 403):
            raise UsageError(f"{self.address} refused the key (or its absence; key_env names its variable); {details}")
        if missing and status == 404:
            raise ToolError(f"there is no document {missing[:80]!r}")
        if status in _RETRIED:
            raise RetryableError(details, response.wait)
        if status in _REFUSED:
            raise ToolError(f"the search engine refused the query; {details}")
        if status != 200:
            raise UsageError(f"{self.address} is no such search server; {details}")
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise RetryableError(f"{details}, which is no JSON") from None

    def _hits(self, answer: Any, query: str, k: int) -> list[Hit]:
        results = at(answer, self.form.results)
        if results is None and isinstance(answer, Mapping) and not answer.get("error"):
            results = []  # Servers leave an empty list out.
        if not isinstance(results, list):
            raise self._strange(f"no list of results at {self.form.results!r}")
        return self._hits_of(results[:k], query)

    def _hits_of(self, results: list[Any], query: str) -> list[Hit]:
        """Convert results into hits; a result with neither title nor text is left out."""
        hits: dict[str, Hit] = {}
        for index, result in enumerate(results):
            parts = {name: _text(at(result, path)) for name, path in self.form.hit.items() if name != "score"}
            text = parts.get("text", "")
            title = " ".join((parts.get("title") or text[:80]).split())
            if not title:
                continue
            id = parts.get("id") or parts.get("url") or f"{query[:40]} {index + 1}"
            score = at(result, self.form.hit.get("score", "score"))
            number = float(score) if isinstance(score, int | float) and abs(score) < 1e30 else 1 / (1 + index)
            hits.setdefault(id, Hit(id, title, text or title, number, parts.get("url", "")))
        return list(hits.values())

    def _strange(self, what: str) -> Broken:
        return Broken(f"{self.address} answered something else than its mapping says: {what}")


def _text(value: Any) -> str:
    """Return a text or number as valid text, and "" for other types."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return str(value)[:TEXT_CHARS].encode("utf-8", "replace").decode().replace("\0", "")
