"""A web site in this process: what both browsers serve without a network, a port or a server.

A site answers requests for its host. `Pages` serves fixed pages, `Folder` a folder of files or of an installed package.
A site with a state (a cart, a database) is a class of an environment's author; its snapshot is its deep copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from mimetypes import guess_type
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from palaestra.errors import UsageError


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """What a browser asks a site."""

    url: str
    method: str = "GET"
    body: bytes = b""
    cookies: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Decoded, and never empty."""
        return unquote(urlsplit(self.url).path) or "/"

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the question mark; of a name that is given twice the last."""
        return dict(parse_qsl(urlsplit(self.url).query, keep_blank_values=True))

    @property
    def form(self) -> dict[str, str]:
        """What a form sent: in the body of a POST, else in the query."""
        if self.method != "POST":
            return self.query
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))


@dataclass(frozen=True, slots=True)
class SiteResponse:
    """What a site answers."""

    body: str | bytes = ""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Location, Set-Cookie and the like; several cookies stand on lines of one Set-Cookie."""

    @classmethod
    def redirect(cls, url: str) -> "SiteResponse":
        """Go there, with a GET."""
        return cls(status=303, headers={"Location": url})


class Site(Protocol):
    """Answers in place, without waiting. One object belongs to one episode, unless it has no state."""

    def respond(self, request: SiteRequest) -> SiteResponse:
        """The answer; an exception is shown to the agent as status 500."""


class Pages:
    """Fixed pages by path: {"/": "<h1>Home</h1>"}. It has no state, so all episodes may share it."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages = pages

    def respond(self, request: SiteRequest) -> SiteResponse:
        """The page of that path."""
        body = self.pages.get(request.path)
        return SiteResponse("<h1>404 Not Found</h1>", 404) if body is None else SiteResponse(body)

    def __deepcopy__(self, memo: object) -> "Pages":
        return self


class Folder:
    """Files below a folder; a path that leads out of it, by dots or by links, is not found."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder).resolve()
        if not self.root.is_dir():
            raise UsageError(f"the site's folder {str(folder)!r} is not there")

    def respond(self, request: SiteRequest) -> SiteResponse:
        """The file of that path, or index.html of that folder."""
        try:
            found = (self.root / request.path.lstrip("/")).resolve()
            if found.is_dir():
                found /= "index.html"
            if not found.resolve().is_relative_to(self.root):
                raise FileNotFoundError
            body = found.read_bytes()
        except (OSError, ValueError):  # ValueError: a null character in the path.
            return SiteResponse("<h1>404 Not Found</h1>", 404)
        return SiteResponse(body, type=guess_type(found.name)[0] or "application/octet-stream")

    def __deepcopy__(self, memo: object) -> "Folder":
        return self
