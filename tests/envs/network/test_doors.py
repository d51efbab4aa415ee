"""The transport and the proxy, two doors with one rule: a connection goes to a checked address, by its name."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
from web_servers import client_tls, server_tls, serving

from palaestra.envs.browser.network.addresses import AddressRefused, system_lookup
from palaestra.envs.browser.network.allow import allow_list
from palaestra.envs.browser.network.proxy import FilteringProxy
from palaestra.envs.browser.network.transport import MAX_CONNECTIONS, checked_transport
from palaestra.envs.browser.network.way import ProxyLimits, Way

PUBLIC, SECOND = "93.184.216.34", "93.184.216.35"
both_doors = pytest.mark.parametrize("door", ["transport", "proxy"])


@asynccontextmanager
async def client(door, allowed, lookup=system_lookup):
    """An httpx client behind a door."""
    allow = allow_list(allowed)
    if door == "transport":
        transport = checked_transport(allow, lookup=lookup, tls=client_tls())
        async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=5) as made:
            yield made
        return
    proxy = FilteringProxy(Way(allow, ProxyLimits(connect_seconds=2.0), lookup))
    async with httpx.AsyncClient(proxy=await proxy.start(), verify=client_tls(), trust_env=False, timeout=5) as made:
        yield made
    await proxy.close()


async def outcome(made, url):
    """The answer's text, or why there is none."""
    try:
        found = await made.get(url)
    except (AddressRefused, httpx.ProxyError):
        return "refused"
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}"
    return "refused" if found.status_code == 403 else found.text


@both_doors
def test_a_name_that_is_rebound_after_its_check_leads_nowhere_else(door, internet):
    answers = [[PUBLIC], ["127.0.0.1"], [PUBLIC, "127.0.0.1"]]

    async def go():
        async with serving() as server, client(door, "public", lambda name: answers.pop(0)) as made:
            internet[PUBLIC] = server.port
            assert "Host: rebound.org" in await outcome(made, "http://rebound.org/")
            assert answers[0] == ["127.0.0.1"], "a second look-up of one connection could answer otherwise"
            assert await outcome(made, "http://rebound.org/secret") == "refused"
            assert await outcome(made, "http://rebound.org/secret") == "refused"
            assert server.connections == 1

    asyncio.run(go())
    assert [address for address in internet.dialled if address != "127.0.0.1"] == [PUBLIC]


@both_doors
def test_the_certificate_is_checked_for_the_name_and_not_for_the_address(door):
    async def go():
        async with serving(tls=server_tls()) as server:
            names = [f"ok.test:{server.port}=127.0.0.1", f"evil.test:{server.port}=127.0.0.1"]
            async with client(door, names) as made:
                assert f"Host: ok.test:{server.port}" in await outcome(made, f"https://ok.test:{server.port}/")
                assert "CERTIFICATE_VERIFY_FAILED" in await outcome(made, f"https://evil.test:{server.port}/")
                assert len(server.heads) == 1
                assert await outcome(made, f"https://127.0.0.1:{server.port}/") == "refused"

    asyncio.run(go())


@both_doors
def test_a_redirect_is_handed_back_and_its_target_is_checked_like_any_other(door):
    async def go():
        async with serving() as inner:
            for target in (f"http://127.0.0.1:{inner.port}/", f"http://[::ffff:127.0.0.1]:{inner.port}/"):
                lines = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()

                async def leads(head, reader, writer, lines=lines):
                    writer.write(lines)

                async with serving(leads) as outer, client(door, f"ok.test:{outer.port}=127.0.0.1, public") as made:
                    answer = await made.get(f"http://ok.test:{outer.port}/")
                    assert (answer.status_code, answer.headers["location"]) == (302, target)
                    assert await outcome(made, target) == "refused"
            assert inner.connections == 0

    asyncio.run(go())


@both_doors
def test_a_dead_address_leaves_time_for_the_next_one(door, internet):
    async def go():
        async with serving() as server, client(door, "public", lambda name: [PUBLIC, SECOND]) as made:
            internet.update({PUBLIC: 0, SECOND: server.port})
            made.timeout = httpx.Timeout(5, connect=2)
            assert "Host: two.org" in await outcome(made, "http://two.org/")

    asyncio.run(go())
    assert [address for address in internet.dialled if address != "127.0.0.1"] == [PUBLIC, SECOND]


def test_the_transport_refuses_other_schemes_and_names_of_users_and_asks_no_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")

    async def go():
        async with serving() as server:
            transport = checked_transport(allow_list(f"127.0.0.1:{server.port}"), tls=client_tls())
            for url in ("file:///etc/passwd", "ftp://127.0.0.1/", f"http://me:pass@127.0.0.1:{server.port}/"):
                with pytest.raises(AddressRefused):
                    await transport.handle_async_request(httpx.Request("GET", url))
            request = httpx.Request("GET", f"http://127.0.0.1:{server.port}/a?b", headers={"Host": "forged.org"})
            async with httpx.AsyncClient(transport=transport, trust_env=False) as made:
                found = await made.send(request)
            assert f"Host: 127.0.0.1:{server.port}\r\n" in found.text and "forged" not in found.text

    asyncio.run(go())


def test_a_request_that_is_given_up_at_any_moment_leaves_no_connection_behind():
    async def drips(head, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
        await writer.drain()
        await reader.read()

    async def go():
        async with serving(drips) as server, client("transport", f"127.0.0.1:{server.port}") as made:

            async def given_up(seconds):
                async with asyncio.timeout(seconds), made.stream("GET", f"http://127.0.0.1:{server.port}/") as response:
                    async for _ in response.aiter_raw():
                        pass

            for moment in range(1, 11):
                found = await asyncio.gather(*(given_up(0.01 * moment) for _ in range(30)), return_exceptions=True)
                assert {type(one) for one in found} == {TimeoutError}
            async with asyncio.timeout(5):
                while server._tasks or server.connections < 100:  # Connections that are still open, or on their way.
                    await asyncio.sleep(0.01)
            connections = made._transport.connections
            assert connections._free._value == MAX_CONNECTIONS and connections._idle == []

    asyncio.run(go())


def test_connections_are_kept_for_their_host_alone_and_no_more_than_so_many(monkeypatch):
    monkeypatch.setattr("palaestra.envs.browser.network.transport.MAX_IDLE", 2)

    async def lasting(head, reader, writer):
        while True:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")

    async def go():
        async with serving(lasting) as server:
            names = [f"{name}.test:{server.port}" for name in "abc"]
            async with client("transport", [f"{name}=127.0.0.1" for name in names]) as made:
                for name, opened in zip([*names, *names[1:], names[0], names[0]], (1, 2, 3, 3, 3, 4, 4), strict=True):
                    assert await outcome(made, f"http://{name}/") == "ok"
                    assert server.connections == opened, name
                assert len(server._tasks) <= 3
            async with asyncio.timeout(5):
                while server._tasks:
                    await asyncio.sleep(0.01)

    asyncio.run(go())
