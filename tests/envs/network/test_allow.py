"""An allow-list allows what it lists and nothing else."""

import asyncio
from ipaddress import ip_address

import pytest

from palaestra.envs.browser.network.addresses import AddressRefused
from palaestra.envs.browser.network.allow import allow_list
from palaestra.errors import UsageError

PUBLIC = ip_address("8.8.8.8")


def reached(allowed: str, host: str, port: int = 443, answer: str = "8.8.8.8") -> bool:
    try:
        asyncio.run(allow_list(allowed).addresses(host, port, 5.0, lambda name: [answer]))
    except AddressRefused:
        return False
    return True


@pytest.mark.parametrize(
    ("allowed", "hosts", "others"),
    [
        ("", [], ["example.org", "8.8.8.8", "localhost"]),
        ("example.org", ["example.org", "EXAMPLE.org."], ["a.example.org", "evilexample.org", "example.org.evil.com"]),
        (
            "*.example.org",
            ["a.example.org", "a.b.EXAMPLE.org"],
            ["example.org", "evilexample.org", "a.example.org.x"],
        ),
        ("a.org, B.org", ["a.org", "b.org"], ["c.org", "a.org,b.org"]),
        ("8.8.8.8", ["8.8.8.8"], ["8.8.4.4", "008.8.8.8", "134744072", "dns.google"]),
        ("bücher.example", ["xn--bcher-kva.example", "BÜCHER.example"], ["bucher.example"]),
        ("public", ["example.org", "8.8.8.8"], ["localhost", "127.0.0.1", "10.0.0.1", "[::1]", "intranet"]),
    ],
)
def test_hosts_are_reached_as_listed(allowed: str, hosts: list[str], others: list[str]) -> None:
    assert [host for host in hosts if not reached(allowed, host)] == []
    assert [host for host in others if reached(allowed, host)] == []


def test_ports_are_those_of_the_web_unless_one_is_listed() -> None:
    for allowed in ("example.org", "*.org", "public", "8.8.8.8"):
        host = "8.8.8.8" if allowed[0] == "8" else "example.org"
        assert [port for port in (22, 80, 443, 8080, 6379) if reached(allowed, host, port)] == [80, 443]
    assert [port for port in (80, 443, 8443) if reached("example.org:8443", "example.org", port)] == [8443]
    assert reached("public, example.org:8443", "example.org", 8443) and reached("[2606:4700::1]:81", "2606:4700::1", 81)


def test_inner_addresses_are_reached_only_where_an_address_is_listed() -> None:
    inner = "10.0.0.5"
    assert not any(reached(allowed, "wiki.org", answer=inner) for allowed in ("wiki.org", "*.org", "public"))
    assert reached(f"wiki.local:8000={inner}", "wiki.local", 8000)
    assert not reached(f"wiki.local:8000={inner}", "wiki.local", 8001)
    assert not reached(f"wiki.local:8000={inner}", inner, 8000)
    assert reached("127.0.0.1:8000", "127.0.0.1", 8000) and not reached("127.0.0.1:8000", "localhost", 8000)
    assert reached("localhost:8000", "localhost", 8000) and not reached("localhost:8000", "127.0.0.1", 8000)
    assert not reached("public, 127.0.0.1:8000", "rebound.org", 80, answer="127.0.0.1")
    found = asyncio.run(allow_list(f"wiki.local={inner}").addresses("wiki.local", 80, 5.0, lambda name: 1 / 0))
    assert found == (ip_address(inner),)  # Nobody who answers for the name is asked.


@pytest.mark.parametrize(
    "entry",
    ["http://example.org", "example.org/path", "a b", "example.org:", "example.org:99999", "example.org:1e3", "*",
     "a.*.org", "*.8.8.8.8", "0x7f.1", "user@a.org", "a.org=b.org", "*.a.org=1.2.3.4", "1.2.3.4=1.2.3.5", "a.org:-1"],
)  # fmt: skip
def test_what_is_no_entry_is_told_when_the_list_is_read(entry: str) -> None:
    with pytest.raises(UsageError, match="is no entry of an allow-list"):
        allow_list(["example.org", entry])


def test_a_refusal_says_what_is_allowed_and_no_inner_address() -> None:
    allowed = allow_list("a.org, wiki.local=10.1.2.3")
    with pytest.raises(
        AddressRefused, match=r"evil\.org:80 may not be reached from here: allowed are a\.org, wiki\.local$"
    ):
        asyncio.run(allowed.addresses("evil.org", 80, 5.0, lambda name: 1 / 0))  # And is not looked up: names can tell.
