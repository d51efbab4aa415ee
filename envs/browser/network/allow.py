"""Allow-lists: hosts that a browser may reach, and their addresses. Hosts that are not listed are not allowed.

An entry is one of

    example.org            this host, on ports 80 and 443
    *.example.org          every host below example.org, but not example.org itself
    example.org:8443       this host, only on this port
    public                 every host with public addresses, on ports 80 and 443
    127.0.0.1:8000         this address, even if not public: a service on this computer, also as localhost:8000
    wiki.local:8000=10.0.0.5    this name at this address, even if not public; the name is never looked up

A host with a port is a service of the author: if it cannot be reached, the episode ends BROKEN. Any other host may be
the agent's choice, so a failure to reach it is an observation.

If a name is listed without an address, all its addresses must be public: otherwise the owner of the name could lead a
browser into this computer's own network. Paths are not checked: a host is allowed as a whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

from palaestra.envs.browser.network.addresses import (
    SHOWN,
    Address,
    AddressLookup,
    AddressRefused,
    host_of,
    is_public,
    look_up,
    system_lookup,
)
from palaestra.errors import UsageError

PUBLIC = "public"
PORTS = (80, 443)
_FORMS = "expected example.org, *.example.org, example.org:8443, 'public', 127.0.0.1:8000 or name:8000=127.0.0.1"
_LOCAL = (".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan", ".home.arpa", ".onion")
"""Endings of names that exist only inside a network."""
_LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


@dataclass(frozen=True)
class AllowList:
    """Hosts that may be reached. `allow_list` creates this object."""

    entries: tuple[str, ...] = ()
    """The entries as the user wrote them."""
    public: bool = False
    exact: dict[tuple[str, int], tuple[Address, ...]] = field(default_factory=dict)
    """Addresses to which a host and port are pinned, if any."""
    below: frozenset[tuple[str, int]] = frozenset()
    """Endings of names, with their dot, and a port."""
    services: frozenset[tuple[str, int]] = frozenset()
    """Hosts that were listed with a port: services of the author, which no agent can make unreachable."""

    def pinned(self, host: Address | str, port: int) -> tuple[Address, ...]:
        """Return a host's fixed addresses, or () if its name must be looked up and checked. Raise `AddressRefused`."""
        where = (str(host), port)
        if where in self.exact:
            return self.exact[where]
        if isinstance(host, str):
            parts = host.split(".")
            if any(("." + ".".join(parts[n:]), port) in self.below for n in range(1, len(parts))):
                return ()
            is_allowed = len(parts) > 1 and not f".{host}".endswith(_LOCAL)
        else:
            is_allowed = is_public(host)
        if self.public and port in PORTS and is_allowed:
            return () if isinstance(host, str) else (host,)
        raise AddressRefused(f"{authority(host, port)} may not be reached from here: {self._reason(port)}")

    def _reason(self, port: int) -> str:
        if not self.entries:
            return "no host is allowed"
        if self.public:
            return "it is no public host" if port in PORTS else f"of public hosts ports {PORTS[0]} and {PORTS[1]} only"
        names = [entry.partition("=")[0] for entry in self.entries]
        return f"allowed are {', '.join(names[:8])}{', ...' * (len(names) > 8)}"

    async def addresses(
        self, host: str, port: int, seconds: float, lookup: AddressLookup = system_lookup
    ) -> tuple[Address, ...]:
        """Return the addresses for a connection to a host. The connection must use one of them without another look-up.

        Raise `AddressRefused` if the host may not be reached, and OSError (or its TimeoutError) if the name is not
        found.
        """
        name = host_of(host)
        if pinned := self.pinned(name, port):
            return pinned
        try:
            addresses = await look_up(str(name), lookup, seconds)
        except TimeoutError:
            raise TimeoutError(f"the name {name} was not found within {seconds:g} s") from None
        except OSError as error:
            raise OSError(f"the name {name} was not found: {error.strerror or error}") from None
        for address in addresses:
            if not is_public(address):
                raise AddressRefused(f"{authority(name, port)} may not be reached from here: its address is not public")
        if not addresses:
            raise OSError(f"the name {name} has no address")
        return tuple(addresses)


def allow_list(allowed: "AllowList | str | Iterable[str]") -> AllowList:
    """Read the entries: a list, or one text with commas. Raise a UsageError that names an invalid entry."""
    if isinstance(allowed, AllowList):
        return allowed
    written = allowed.split(",") if isinstance(allowed, str) else list(allowed)
    entries = tuple(entry.strip() for entry in written if entry.strip())
    exact: dict[tuple[str, int], tuple[Address, ...]] = {}
    below: set[tuple[str, int]] = set()
    services: set[tuple[str, int]] = set()
    for entry in entries:
        if entry == PUBLIC:
            continue
        try:
            _read(entry, exact, below, services)
        except (AddressRefused, ValueError) as error:
            raise UsageError(f"{entry[:SHOWN]!r} is no entry of an allow-list ({error}); {_FORMS}") from None
    return AllowList(entries, PUBLIC in entries, exact, frozenset(below), frozenset(services))


def _read(
    entry: str,
    exact: dict[tuple[str, int], tuple[Address, ...]],
    below: set[tuple[str, int]],
    services: set[tuple[str, int]],
) -> None:
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
    if ports is not PORTS:
        services.add((str(host), ports[0]))


def split_port(text: str, default: tuple[int, ...] = PORTS) -> tuple[str, tuple[int, ...]]:
    """Return host and ports of `host`, `host:port` or `[address]:port`; raise ValueError. Without a port: `default`."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        return text, default  # The last is a bare IPv6 address.
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536 and len(port) < 6):
        raise ValueError(f"{port[:SHOWN]!r} is no port")
    return host, (int(port),)


def authority(host: Address | str, port: int) -> str:
    """Return host and port as text for error messages."""
    text = str(host)[:SHOWN]
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
