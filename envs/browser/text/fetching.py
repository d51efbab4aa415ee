"""One request of a session with its redirects, to a site in this process or over the network.

Errors that an agent can cause are ToolErrors: a malformed address, a dead host, a page that comes too slowly, redirects
without end. Content that is not text is not loaded: the tab keeps its page, and a note names the content's type. Not
here: `envs.browser.network` decides which hosts may be reached, and `document` parses a page.
"""

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from palaestra.envs.browser.format import escape
from palaestra.envs.browser.network.addresses import Unreached
from palaestra.envs.browser.site import Site, SiteRequest, SiteResponse, answer_of
from palaestra.envs.browser.text.cookies import Jar
from palaestra.envs.browser.text.document import ParsedPage, document_of, plain_document
from palaestra.errors import ToolError

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 20
MAX_URL = 8_192
SHOWN = 200
FOLLOWED_SECONDS = 1.0
"""Refresh delay in seconds up to which a page is left at once."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.+-]{2,40})", re.IGNORECASE)
_ENCODINGS = re.compile(
    r"utf-(8|16)|ascii|iso8859-\d+|cp125\d|cp(866|874|932|949)|koi8-[ru]|mac-roman|gb(k|2312|18030)|big5|euc_(jp|kr)|"
    r"shift_jis|iso2022_jp"
)
"""Encodings of the web, by Python's names. Others, such as punycode, are not used for pages."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_HTML = ("text/html", "application/xhtml+xml", "")
_TEXTS = ("application/json", "application/xml", "application/x-ndjson", "application/javascript", "application/yaml")
_HEADERS = {"User-Agent": "palaestra", "Accept": "text/html, text/*, application/json", "Accept-Encoding": "gzip"}


class Download(ToolError):
    """Raised when the content is not a page; the content was not loaded."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The page that a request returned, and its address after all redirects."""

    url: str
    document: ParsedPage
    method: str = "GET"
    note: str = ""


def split(url: str) -> SplitResult:
    """Return the parts of a full address, or raise a ToolError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ToolError(f"{url[:SHOWN]!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ToolError(f"{url[:SHOWN]!r} cannot be opened: addresses begin with http:// or https://")
    if not parts.hostname or len(url) > MAX_URL or port == 0:
        raise ToolError(f"{url[:SHOWN]!r} is no address")
    return parts


async def load(
    client: "Client", sites: Mapping[str, Site], jar: Jar, url: str, method: str, body: bytes, seconds: float
) -> Loaded:
    """Send a request, and follow its redirects. Raise a ToolError after `seconds`, if the client can wait at all."""
    work = _load(client, sites, jar, url, method, body, seconds)
    if not client.waits:
        return await work
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise ToolError(f"the page did not come within {seconds:g} s") from None


async def _load(
    client: "Client", sites: Mapping[str, Site], jar: Jar, url: str, method: str, body: bytes, seconds: float
) -> Loaded:
    for _ in range(MAX_REDIRECTS + 1):
        parts = split(url)
        site = sites.get(parts.netloc.lower()) or sites.get(parts.hostname or "")
        if site is None and not client.waits:
            hosts = f"hosts: {', '.join(list(sites)[:8])}" if sites else "no host can be reached"
            raise ToolError(f"there is no host {parts.netloc[:SHOWN]!r} here; {hosts}")
        response = (
            await client.respond(url, parts, method, body, jar, seconds)
            if site is None
            else answer_of(site, SiteRequest(url.partition("#")[0], method, body, jar.of(parts)))
        )
        headers = {name.lower(): value for name, value in response.headers.items()} if response.headers else {}
        for cookie in headers.get("set-cookie", "").splitlines():
            jar.take(parts, cookie)
        if response.status in (301, 302, 303, 307, 308) and "location" in headers:
            url = _join(url, headers["location"])
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", b""
            continue
        document = _document(response, url, headers)
        if document.refresh is not None and document.refresh[0] <= FOLLOWED_SECONDS:
            url, method, body = _join(url, document.refresh[1]), "GET", b""
            continue
        note = f"status {response.status}" if response.status >= 400 else ""
        return Loaded(url, document, method, note)
    raise ToolError(f"too many redirects (more than {MAX_REDIRECTS}), the last one to {escape(url[:SHOWN])}")


def _join(base: str, url: str) -> str:
    try:
        return urljoin(base, url.strip())
    except ValueError:
        raise ToolError(f"the page leads to {escape(url[:SHOWN])!r}, which is no address") from None


def _document(response: SiteResponse, url: str, headers: Mapping[str, str]) -> ParsedPage:
    kind, _, parameters = response.type.partition(";")
    kind = kind.strip().lower()
    if not _readable(kind):
        size = headers.get("content-length") or (len(response.body) if response.body else "unknown")
        reason = escape(f"{url[:SHOWN]} is no page ({kind[:60]}, {str(size)[:12]} bytes)")
        raise Download(f"{reason} and was not loaded")
    body, html = response.body, kind in _HTML
    text = body if isinstance(body, str) else decode_body(body, parameters, html)
    return document_of(text) if html else plain_document(text)


def _readable(kind: str) -> bool:
    return kind in _HTML or kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))


def decode_body(body: bytes, declared: str, html: bool) -> str:
    """Decode a body by its byte order mark, or else its declared charset, or else as UTF-8 or Windows-1252."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    charset = _CHARSET.search(declared) or (_CHARSET.search(body[:1024].decode("latin-1")) if html else None)
    if charset:
        try:
            name = codecs.lookup(charset[1]).name
        except LookupError:
            name = ""
        if _ENCODINGS.fullmatch(name):
            # A page that says in ASCII that it is UTF-16 cannot be; browsers read it as UTF-8, and latin-1 as cp1252.
            name = {"iso8859-1": "cp1252", "ascii": "cp1252", "utf-16": "utf-8"}.get(name, name)
            return body.decode(name, "replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace") if not charset else body.decode("utf-8", "replace")


class Client:
    """A client for hosts on the network."""

    def __init__(self, make: "Callable[[], httpx.AsyncBaseTransport] | None", max_bytes: int) -> None:
        """`make` returns the transport of the running event loop; None means that no network may be reached."""
        self._make, self.max_bytes = make, max_bytes
        self.waits = make is not None

    async def respond(
        self, url: str, parts: SplitResult, method: str, body: bytes, jar: Jar, seconds: float
    ) -> SiteResponse:
        """Send one request and return its answer."""
        import httpx

        headers = dict(_HEADERS)
        if cookies := jar.of(parts):
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        if method == "POST":
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            request = httpx.Request(method, url, headers=headers, content=body if method == "POST" else None)
            request.extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
            assert self._make is not None
            response = await self._make().handle_async_request(request)
            try:
                return await self._read(response)
            finally:
                await response.aclose()
        except Unreached as lost:
            raise lost.blame(f"{escape(url[:SHOWN])} could not be loaded: {lost}") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, zlib.error, OSError) as error:
            reason = str(error) or type(error).__name__
            raise ToolError(f"{escape(url[:SHOWN])} could not be loaded: {reason[:SHOWN]}") from None

    async def _read(self, response: "httpx.Response") -> SiteResponse:
        headers = {name.lower(): value for name, value in response.headers.items() if name.lower() != "set-cookie"}
        headers["set-cookie"] = "\n".join(response.headers.get_list("set-cookie"))
        kind = headers.get("content-type", "")
        if not _readable(kind.partition(";")[0].strip().lower()):
            return SiteResponse(b"", response.status_code, kind, headers)  # Its body is not read.
        unzip = zlib.decompressobj(47) if headers.get("content-encoding") in ("gzip", "x-gzip", "deflate") else None
        body = bytearray()
        assert isinstance(response.stream, AsyncIterable)
        async for part in response.stream:
            body += part if unzip is None else unzip.decompress(part, self.max_bytes + 1 - len(body))
            if len(body) > self.max_bytes:
                break
        return SiteResponse(bytes(body[: self.max_bytes]), response.status_code, kind, headers)
