"""Hosts and addresses: one spelling of each, which of them are public, and name look-ups with a timeout.

A host that a page or an agent wrote is untrusted text. `host_of` turns it into a plain address or a plain name, or
refuses it, so later code cannot read the same text differently. Not here: which hosts are allowed (`allow`), and
connecting (`transport`, `proxy`).
"""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from palaestra.errors import Broken, PalaestraError, ToolError

Address = IPv4Address | IPv6Address
AddressLookup = Callable[[str], Sequence[str]]
"""A function from a name to its addresses. It blocks, and raises OSError if there are none."""
MAX_LOOKUPS = 256
"""Maximum number of concurrent look-ups in this process, which bounds the threads if a name server hangs."""
_AGAIN_SECONDS = 0.05
"""Seconds between checks for a free place for another look-up."""
SHOWN = 100
"""Number of characters of a host that an error repeats."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # For protocols; one cloud has its metadata there, at 192.0.0.192.
    IPv4Network("192.88.99.0/24"),  # Relays of 6to4.
    IPv4Network("168.63.129.16/32"),  # Virtual machines of one cloud get their settings there.
    IPv6Network("2001::/23"),  # For protocols: a Teredo address contains an IPv4 address.
    IPv6Network("2002::/16"),  # A 6to4 address contains one too.
    IPv6Network("3fff::/20"),  # For documentation; Python 3.11 does not know it.
)
"""Networks that `ipaddress` treats as public in some version of Python, but that are not."""
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All assigned public addresses. NAT64, IPv4 in IPv6, link-local, site-local and multicast are outside."""
_looking = threading.BoundedSemaphore(MAX_LOOKUPS)


class AddressRefused(ToolError):
    """Raised for an address that must not be reached. The agent sees the reason."""


class Unreached(ToolError):
    """Raised if a host gives no connection. `blame` decides whether the agent sees this, or the episode is Broken."""

    def __init__(self, reason: str, place: tuple[str, int], is_service: bool) -> None:
        super().__init__(reason)
        self.place, self.is_service = place, is_service
        """`place` is host and port; `is_service` is true for a service of the allow-list."""

    def blame(self, text: str) -> PalaestraError:
        """Return the exception to raise, with this message: Broken for a service, otherwise an `Unreached`."""
        return Broken(text) if self.is_service else Unreached(text, self.place, self.is_service)


def place_of(url: str) -> tuple[str, int] | None:
    """Return host and port of an address, or None if the address has no valid host and port."""
    try:
        parts = urlsplit(url)
        return str(host_of(parts.hostname or "")), parts.port or (443 if parts.scheme == "https" else 80)
    except (ValueError, AddressRefused):
        return None


def host_of(text: str) -> Address | str:
    """Return the one spelling of a host: an address, or a lower-case ASCII name without a final dot.

    Raise `AddressRefused` for any other text. An address in hexadecimal, in octal, as one number or with fewer than
    four parts is refused, not translated.
    """
    quoted = repr(text[:SHOWN])
    if len(text) > 1024:
        raise AddressRefused(f"{quoted}... is no host")
    bare = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    if ":" in bare:
        try:
            address = ip_address(bare)
        except ValueError:
            raise AddressRefused(f"{quoted} is no host") from None
        if isinstance(address, IPv6Address) and address.scope_id:
            raise AddressRefused(f"{quoted} names a network interface, which no public address does")
        return address
    try:
        name = bare.encode("idna").decode("ascii").lower().removesuffix(".")  # Full-width letters and dots, too.
    except UnicodeError:
        raise AddressRefused(f"{quoted} is no host") from None
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return IPv4Address(name)
        except ValueError:
            raise AddressRefused(f"{quoted} is an odd spelling of an address; write four decimal numbers") from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise AddressRefused(f"{quoted} is no host")
    return name


def is_public(address: Address) -> bool:
    """Return whether this is an ordinary internet address: not private, local, shared, relayed or reserved."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    special = address.is_multicast or address.is_reserved or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def system_lookup(name: str) -> list[str]:
    """Return the addresses of a name, as the system resolves it."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


async def look_up(name: str, lookup: AddressLookup, seconds: float) -> list[Address]:
    """Return all addresses of a name, looked up on a separate thread.

    Raise TimeoutError after `seconds`, and OSError if the look-up fails.
    """
    outcome: Future[list[Address]] = Future()

    def work() -> None:
        addresses: list[Address] = []
        error = None
        try:
            addresses = list(dict.fromkeys(ip_address(text) for text in lookup(name)))
        except Exception as raised:
            error = raised if isinstance(raised, OSError) else OSError(str(raised))
        finally:
            _looking.release()
        if outcome.set_running_or_notify_cancel():  # Otherwise the caller does not wait any more.
            outcome.set_result(addresses) if error is None else outcome.set_exception(error)

    async with asyncio.timeout(seconds):
        while not _looking.acquire(blocking=False):
            await asyncio.sleep(_AGAIN_SECONDS)
        try:
            threading.Thread(target=work, name="palaestra-lookup", daemon=True).start()
        except RuntimeError as error:  # The machine has no more threads.
            _looking.release()
            raise OSError(str(error)) from None
        return await asyncio.wrap_future(outcome)
