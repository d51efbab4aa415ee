"""Hosts and addresses: one spelling of each, which of them are public, and looking a name up within a deadline.

What a page or an agent writes as a host is a stranger's text. Here it becomes a plain address or a plain name, or it is
refused: there is no second spelling that later code could read in another way. Left out: which hosts are allowed
(`allow`), and connecting (`transport`, `proxy`).
"""

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from palaestra.errors import ToolError

Address = IPv4Address | IPv6Address
Lookup = Callable[[str], Sequence[str]]
"""From a name to its addresses; blocks, and raises OSError where there are none."""
MAX_LOOKUPS = 256
"""Names that are looked up at once, in this process: a server of names that hangs costs no more threads."""
_AGAIN_SECONDS = 0.05
"""Until one looks again whether another name may be looked up."""
SHOWN = 100
"""Characters of a host that an error repeats."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # Of protocols; one cloud has its metadata there, at 192.0.0.192.
    IPv4Network("192.88.99.0/24"),  # Relays of 6to4.
    IPv4Network("168.63.129.16/32"),  # What a cloud's virtual machines ask for their settings.
    IPv6Network("2001::/23"),  # Of protocols: Teredo holds an IPv4 address inside.
    IPv6Network("2002::/16"),  # 6to4 holds one as well.
    IPv6Network("3fff::/20"),  # For documents; Python 3.11 does not know it.
)
"""What `ipaddress` takes for public, in one version of Python or another, and is not."""
_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""All that is given out; outside lie NAT64, IPv4 in IPv6, link-local, site-local, multicast."""
_looking = threading.BoundedSemaphore(MAX_LOOKUPS)


class Refused(ToolError):
    """An address that must not be reached: told to the agent, with the reason."""


def host_of(text: str) -> Address | str:
    """The one spelling of a host: an address, or a name in lower-case ASCII without a dot at its end. Or `Refused`.

    An address in hexadecimal, octal, as one number or with fewer than four parts is refused, not translated.
    """
    shown = repr(text[:SHOWN])
    if len(text) > 1024:
        raise Refused(f"{shown}... is no host")
    bare = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    if ":" in bare:
        try:
            found = ip_address(bare)
        except ValueError:
            raise Refused(f"{shown} is no host") from None
        if isinstance(found, IPv6Address) and found.scope_id:
            raise Refused(f"{shown} names a network interface, which no public address does")
        return found
    try:
        name = bare.encode("idna").decode("ascii").lower().removesuffix(".")  # Full-width letters and dots, too.
    except UnicodeError:
        raise Refused(f"{shown} is no host") from None
    labels = name.split(".")
    if _NUMERIC.fullmatch(labels[-1]):
        try:
            return IPv4Address(name)
        except ValueError:
            raise Refused(f"{shown} is an odd spelling of an address; write four decimal numbers") from None
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Refused(f"{shown} is no host")
    return name


def is_public(address: Address) -> bool:
    """Whether it is an ordinary address of the internet: no private, local, shared, relayed or reserved one."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    special = address.is_multicast or address.is_reserved or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def system_lookup(name: str) -> list[str]:
    """As the machine resolves names."""
    return [str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


async def looked_up(name: str, lookup: Lookup, seconds: float) -> list[Address]:
    """All addresses of a name, on a thread of its own. TimeoutError when it takes too long, OSError when it fails."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[list[Address]] = loop.create_future()

    def settle(found: list[Address], error: Exception | None) -> None:
        if outcome.done():  # Nobody waits any more.
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(found)

    def work() -> None:
        found: list[Address] = []
        error = None
        try:
            found = list(dict.fromkeys(ip_address(one) for one in lookup(name)))
        except Exception as raised:
            error = raised if isinstance(raised, OSError) else OSError(str(raised))
        finally:
            _looking.release()
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, found, error)

    async with asyncio.timeout(seconds):
        while not _looking.acquire(blocking=False):
            await asyncio.sleep(_AGAIN_SECONDS)
        try:
            threading.Thread(target=work, name="palaestra-lookup", daemon=True).start()
        except RuntimeError as error:  # The machine has no more threads.
            _looking.release()
            raise OSError(str(error)) from None
        return await outcome
