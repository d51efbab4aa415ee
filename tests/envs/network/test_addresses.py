"""No spelling of an address that is not public gets through, and names are looked up once, within a deadline."""

import asyncio
import socket
import threading
import time
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palaestra.envs.browser.network.addresses import MAX_LOOKUPS, AddressRefused, host_of, is_public
from palaestra.envs.browser.network.allow import allow_list

WEB = allow_list("public")
INSIDE = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
]  # fmt: skip
inside = st.sampled_from(INSIDE).map(ip_network).flatmap(
    lambda net: st.integers(int(net.network_address), int(net.broadcast_address)).map(IPv4Address)
)  # fmt: skip


def numeric(address: IPv4Address, parts: int, bases: list[str], padding: int) -> str:
    """As C's `inet_aton` takes it: 1 to 4 parts, the last of which holds the rest, each in any base."""
    octets = list(address.packed)
    values = [*octets[: parts - 1], int.from_bytes(bytes(octets[parts - 1 :]), "big")]
    forms = {"d": "{}", "o": "0" * padding + "0{:o}", "x": "0x" + "0" * padding + "{:x}", "X": "0X{:X}"}
    return ".".join(forms[base].format(value) for base, value in zip(bases, values, strict=False))


@st.composite
def spellings(draw: st.DrawFn) -> str:
    """A way to write an inner address in an address bar."""
    address = draw(inside)
    v6 = {"mapped": "::ffff:", "compatible": "::", "nat64": "64:ff9b::", "local nat64": "64:ff9b:1::"}
    kind = draw(st.sampled_from(["numeric", "numeric", "numeric", "6to4", "teredo", *v6]))
    if kind in v6:
        text = f"{v6[kind]}{address}"
        text = text if draw(st.booleans()) else str(ip_address(text))
        return f"[{text}]"
    high, low = int(address) >> 16, int(address) & 0xFFFF
    if kind == "6to4":
        return f"[2002:{high:x}:{low:x}::1]"
    if kind == "teredo":
        return f"[2001::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}]"
    bases = draw(st.lists(st.sampled_from("doxX"), min_size=4, max_size=4))
    text = numeric(address, draw(st.integers(1, 4)), bases, draw(st.integers(0, 3)))
    assert socket.inet_aton(text) == address.packed, "it would be no spelling at all"
    if draw(st.booleans()):
        text = "".join(chr(ord(letter) + 0xFEE0) if letter.isdigit() else letter for letter in text)
    text = text.replace(".", draw(st.sampled_from(".。．｡")))
    return text + draw(st.sampled_from(["", "."]))


def never(name: str) -> list[str]:
    raise AssertionError(f"{name!r} was looked up")


def reach(host: str, lookup=never, port: int = 80, allow=WEB, seconds: float = 5.0):
    return asyncio.run(allow.addresses(host, port, seconds, lookup))


@given(spellings())
@example("[fd00:ec2::254]")
@example("[fe80::1%25eth0]")
@example("[fe80::1%eth0]")
@example("[2606:4700::1%eth0]")
@example("[::]")
@example("[ff02::1]")
@example("[fec0::1]")
@example("127.0.0.1%00.example.org")
@example("user@127.0.0.1")
@example("%31%32%37.0.0.1")
@example("metadata.google.internal")
@example("Metadata.Google.Internal.")
@example("localhost")
@example("LOCALHOST.")
@example("a.localhost")
@example("ⓛocalhost")
@example("metadata")
@example("printer.local")
@example("")
@example(".")
@example("..")
@example("a" * 70 + ".org")
@example("ex ample.org")
@example("example.org\n")
@example("example.org:80")
@example("1" * 5000)
def test_no_spelling_of_an_inner_address_is_public(host: str) -> None:
    with pytest.raises(AddressRefused):
        WEB.addresses(host, 80, 5.0, never).send(None)  # Before it waits for anything.


@settings(max_examples=30)
@given(inside)
@example(ip_address("fd00:ec2::254"))
@example(ip_address("::ffff:8.8.8.8"))
@example(ip_address("2002:808:808::1"))
@example(ip_address("64:ff9b::808:808"))
@example(ip_address("3fff::1"))
def test_a_public_name_that_leads_to_an_inner_address_is_refused_whatever_stands_beside_it(inner) -> None:
    for answers in ([str(inner)], ["93.184.216.34", str(inner)], [str(inner), "2606:4700::1"]):
        with pytest.raises(AddressRefused, match="not public"):
            reach("example.org", lambda name, found=answers: found)


@given(st.text(max_size=20) | st.text("0189abfx:.[]%-", max_size=20))
def test_a_host_has_one_spelling_or_none(text: str) -> None:
    try:
        found = host_of(text)
    except AddressRefused:
        return
    assert host_of(str(found)) == found
    if isinstance(found, str):
        assert found.isascii() and found == found.lower() and not set(found) & set(" /\\@:%#?[]\n\t")
        with pytest.raises(OSError, match="illegal IP"):
            socket.inet_aton(found)


def test_ordinary_addresses_and_names_are_public() -> None:
    for address in ("8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1"):
        assert is_public(ip_address(address)) and reach(address) == (ip_address(address),)
    found = reach("Bücher.Example.", lambda name: [(name == "xn--bcher-kva.example" and "8.8.8.8") or "10.0.0.1"] * 2)
    assert found == (IPv4Address("8.8.8.8"),)
    assert reach("example.org", lambda name: ["2606:4700::1"], 443) == (IPv6Address("2606:4700::1"),)


def test_a_name_that_is_not_answered_costs_its_deadline_and_holds_up_nobody() -> None:
    gate = threading.Event()

    async def ask() -> int:
        begun = time.monotonic()
        asked = [WEB.addresses("slow.org", 80, 0.3, lambda name: gate.wait(30) and []) for _ in range(MAX_LOOKUPS + 5)]
        ticks, outcomes = 0, asyncio.gather(*asked, return_exceptions=True)
        while not outcomes.done():
            ticks += 1
            await asyncio.sleep(0.01)
        assert time.monotonic() - begun < 25, "a look-up takes 30 s"
        found = [str(one) for one in await outcomes]
        assert sum("not found within 0.3 s" in one for one in found) == MAX_LOOKUPS + 5
        assert sum(thread.name == "palaestra-lookup" for thread in threading.enumerate()) == MAX_LOOKUPS
        return ticks

    try:
        assert asyncio.run(ask()) > 5
    finally:
        gate.set()
    until = time.monotonic() + 10
    while any(thread.name == "palaestra-lookup" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert reach("example.org", lambda name: ["8.8.8.8"])  # What was taken is given back.


def test_a_name_without_an_address_is_an_error_that_names_it() -> None:
    def missing(name: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    for lookup in (missing, lambda name: [], lambda name: ["no address"]):
        with pytest.raises(OSError, match=r"gone\.org"):
            reach("gone.org", lookup)
