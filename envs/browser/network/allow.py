"""Allow-lists: which hosts a browser may reach, and at which addresses. Nothing is allowed that is not listed.

An entry is one of

    example.org            this host, on ports 80 and 443
    *.example.org          every host below it, not itself
    example.org:8443       this port alone
    public                 every host with public addresses, on ports 80 and 443
    127.0.0.1:8000         this address, which need not be public: a service on this machine, also as localhost:8000
    wiki.local:8000=10.0.0.5    this name at this address, which need not be public; the name is never looked up

A name that is listed without an address must have public addresses, all of them: otherwise whoever answers for the name
could lead a browser into the network of this machine. Left out: paths; a host is allowed as a whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from palaestra.envs.browser.network.addresses import (
    SHOWN,
    Address,
    Lookup,
    Refused,
    host_of,
    is_public,
    looked_up,
    system_lookup,
)
from palaestra.errors import UsageError

PUBLIC = "public"
PORTS = (80, 443)
_FORMS = "expected example.org, *.example.org, example.org:8443, 'public', 127.0.0.1:8000 or name:8000=127.0.0.1"
_LOCAL = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa", ".onion")
"""Ends of names that mean something inside a network only."""
_LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


@dataclass(frozen=True)
class AllowList:
    """What may be reached. Made by `allow_list`."""

    entries: tuple[str, ...] = ()
    """As they were written."""
    public: bool = False
    exact: dict[tuple[str, int], tuple[Address, ...]] = field(default_factory=dict)
    """By host and port; with the addresses that it is pinned to, if any."""
    below: frozenset[tuple[str, int]] = frozenset()
    """Ends of names, with their dot, and a port."""

    def pinned(self, host: Address | str, port: int) -> tuple[Address, ...]:
        """Addresses that need no look-up and no check; none where the name must be looked up. Or `Refused`."""
        where = (str(host), port)
        if where in self.exact:
            return self.exact[where]
        if isinstance(host, str):
            parts = host.split(".")
            if any(("." + ".".join(parts[n:]), port) in self.below for n in range(1, len(parts))):
                return ()
            named = len(parts) > 1 and not f".{host}".endswith(_LOCAL)
        else:
            named = is_public(host)
        if self.public and port in PORTS and named:
            return () if isinstance(host, str) else (host,)
        raise Refused(f"{shown(host, port)} may not be reached from here: {self._reason(port)}")

    def _reason(self, port: int) -> str:
        if not self.entries:
            return "no host is allowed"
        if self.public:
            return "it is no public host" if port in PORTS else f"of public hosts ports {PORTS[0]} and {PORTS[1]} only"
        names = [entry.partition("=")[0] for entry in self.entries]
        return f"allowed are {', '.join(names[:8])}{', ...' * (len(names) > 8)}"

    async def addresses(
        self, host: str, port: int, seconds: float, lookup: Lookup = system_lookup
    ) -> tuple[Address, ...]:
        """Where a connection to this host may go; it must go to one of these addresses and look nothing up again.

        `Refused` where it may not be reached, OSError (of which TimeoutError is one) where the name is not found.
        """
        found = host_of(host)
        if pinned := self.pinned(found, port):
            return pinned
        try:
            addresses = await looked_up(str(found), lookup, seconds)
        except TimeoutError:
            raise TimeoutError(f"the name {found} was not found within {seconds:g} s") from None
        except OSError as error:
            raise OSError(f"the name {found} was not found: {error.strerror or error}") from None
        for address in addresses:
            if not is_public(address):
                raise Refused(f"{shown(found, port)} may not be reached from here: its address is not public")
        if not addresses:
            raise OSError(f"the name {found} has no address")
        return tuple(addresses)


def allow_list(allowed: "AllowList | str | Iterable[str]") -> AllowList:
    """Read the entries: a list, or one text with commas. A UsageError says which is none."""
    if isinstance(allowed, AllowList):
        return allowed
    written = allowed.split(",") if isinstance(allowed, str) else list(allowed)
    entries = tuple(entry.strip() for entry in written if entry.strip())
    exact: dict[tuple[str, int], tuple[Address, ...]] = {}
    below: set[tuple[str, int]] = set()
    for entry in entries:
        if entry == PUBLIC:
            continue
        try:
            _read(entry, exact, below)
        except (Refused, ValueError) as error:
            raise UsageError(f"{entry[:SHOWN]!r} is no entry of an allow-list ({error}); {_FORMS}") from None
    return AllowList(entries, PUBLIC in entries, exact, frozenset(below))


def _read(entry: str, exact: dict[tuple[str, int], tuple[Address, ...]], below: set[tuple[str, int]]) -> None:
    name, pin, place = entry.partition("=")
    text, ports = split_port(name)
    if text.startswith("*."):
        if pin or not isinstance(end := host_of(text[2:]), str):
            raise ValueError("a pattern has no address")
        below.update((f".{end}", port) for port in ports)
        return
    host = host_of(text)
    addresses: tuple[Address, ...] = _LOOPBACK * (host == "localhost") if isinstance(host, str) else (host,)
    if pin:
        pinned = host_of(place)
        if isinstance(pinned, str) or not isinstance(host, str):
            raise ValueError("behind = stands an address, before it a name")
        addresses = (pinned,)
    exact.update({(str(host), port): addresses for port in ports})


def split_port(text: str, default: tuple[int, ...] = PORTS) -> tuple[str, tuple[int, ...]]:
    """Host and ports of `host`, `host:port` or `[address]:port`. Or a ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        return text, default  # The last is a bare IPv6 address.
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536 and len(port) < 6):
        raise ValueError(f"{port[:SHOWN]!r} is no port")
    return host, (int(port),)


def shown(host: Address | str, port: int) -> str:
    """How errors write it."""
    text = str(host)[:SHOWN]
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
