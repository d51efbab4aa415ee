"""Cookies of one session: kept by domain, path and name, and sent only to addresses that match.

Not supported: SameSite, and the list of public suffixes (`co.uk` can have cookies; a name without a dot cannot).
"""

import time
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import SplitResult

MAX_COOKIES = 100
MAX_CHARS = 4096


class Cookie(NamedTuple):
    """A cookie's value, and the conditions for sending it."""

    value: str
    host_only: bool
    secure: bool
    expires: float | None


class Jar:
    """The cookies of one session."""

    def __init__(self) -> None:
        self.cookies: dict[tuple[str, str, str], Cookie] = {}
        """Cookies by domain, path and name."""

    def of(self, url: SplitResult) -> dict[str, str]:
        """Return the cookies to send to this address, by name.

        If two have one name, the one with the longer path is sent.
        """
        if not self.cookies:
            return {}
        host, path, now = url.hostname or "", url.path or "/", time.time()
        matches = []
        for (domain, under, name), cookie in self.cookies.items():
            if cookie.expires is not None and cookie.expires <= now:
                continue
            here = host == domain or (not cookie.host_only and host.endswith(f".{domain}"))
            if here and _below(path, under) and (not cookie.secure or url.scheme == "https"):
                matches.append((len(under), name, cookie.value))
        return {name: value for _, name, value in sorted(matches, key=lambda match: match[0])}

    def take(self, url: SplitResult, header: str) -> None:
        """Store the cookie of a Set-Cookie header, unless this address may not set it."""
        first, *parts = header.split(";")
        name, equals, value = first.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or len(header) > MAX_CHARS:
            return
        fields = {key.strip().lower(): of.strip() for key, _, of in (part.partition("=") for part in parts)}
        host = url.hostname or ""
        domain = fields.get("domain", "").lstrip(".").lower()
        if domain and domain != host and not (host.endswith(f".{domain}") and "." in domain and not _is_address(host)):
            return
        path = fields.get("path", "")
        path = path if path.startswith("/") else (url.path.rpartition("/")[0] or "/")
        key = (domain or host, path, name)
        expires = _expires(fields)
        self.cookies.pop(key, None)
        if expires is None or expires > time.time():
            self.cookies[key] = Cookie(value, not domain, "secure" in fields, expires)
            while len(self.cookies) > MAX_COOKIES:
                del self.cookies[next(iter(self.cookies))]


def _below(path: str, under: str) -> bool:
    return path == under or path.startswith(under if under.endswith("/") else f"{under}/")


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


def _expires(fields: dict[str, str]) -> float | None:
    try:
        if "max-age" in fields:
            return time.time() + max(int(fields["max-age"][:12]), 0)
        if "expires" in fields:
            return parsedate_to_datetime(fields["expires"]).timestamp()
    except (ValueError, OverflowError):
        pass
    return None
