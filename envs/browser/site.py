"""A web site in this process, which both browsers serve without a network, a port or a server.

A site answers requests for its host. `Pages` serves fixed pages, `StaticSite` a folder of files or of a package.
A site with a state (a cart, a database) is a class in an environment's code; its snapshot is its deep copy.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from mimetypes import guess_type
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.envs")


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """A request of a browser to a site."""

    url: str
    method: str = "GET"
    body: bytes = b""
    cookies: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Path of the address, decoded and never empty."""
        return unquote(urlsplit(self.url).path) or "/"

    @property
    def query(self) -> dict[str, str]:
        """Parameters after the question mark; if a name occurs twice, the last value counts."""
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        """Fields that a form sent. They come from the body of a POST, and from the query of any other request."""
        if self.method != "POST":
            return self.query
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class SiteResponse:
    """The answer of a site."""

    body: str | bytes = ""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers such as Location and Set-Cookie; several cookies are lines of one Set-Cookie."""

    @classmethod
    def redirect(cls, url: str) -> "SiteResponse":
        """Return a redirect: the browser then requests this address with a GET."""
        return cls(status=303, headers={"Location": url})


class Site(Protocol):
    """Answers requests without waiting. Each episode has its own object, unless the site has no state."""

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the answer; an exception is shown to the agent as status 500."""


def answer_of(site: Site, request: SiteRequest) -> SiteResponse:
    """Return the answer of a site; an exception of the author's code becomes an answer with status 500."""
    try:
        return site.respond(request)
    except Broken:
        raise
    except Exception as error:
        log.warning("the site %s raised on %s", type(site).__name__, request.url, exc_info=error)
        return SiteResponse(f"500 {type(error).__name__}", 500, "text/plain")


class Pages:
    """Fixed pages by path: {"/": "<h1>Home</h1>"}. It has no state, so all episodes may share it."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = pages

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the page of that path, or status 404."""
        body = self.pages.get(request.path)
        return SiteResponse("<h1>404 Not Found</h1>", 404) if body is None else SiteResponse(body)

    def __deepcopy__(self, memo: object) -> "Pages":
        return self


class StaticSite:
    """Files below a folder. A path that leads out of the folder, by dots or by links, gives status 404."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder).resolve()
        if not self.root.is_dir():
            raise UsageError(f"the site's folder {str(folder)!r} is not there")

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the file of that path, or index.html of that folder, or status 404."""
        try:
            file = (self.root / request.path.lstrip("/")).resolve()
            if file.is_dir():
                file /= "index.html"
            if not file.resolve().is_relative_to(self.root):
                raise FileNotFoundError
            body = file.read_bytes()
        except (OSError, ValueError):  # ValueError: a null character in the path.
            return SiteResponse("<h1>404 Not Found</h1>", 404)
        return SiteResponse(body, type=guess_type(file.name)[0] or "application/octet-stream")

    def __deepcopy__(self, memo: object) -> "StaticSite":
        return self
