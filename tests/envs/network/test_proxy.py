"""The proxy under attack from both sides: what is no plain request is refused, what passes a bound is cut."""

import asyncio
import threading
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_servers import serving

from palaestra.envs.browser.network.allow import allow_list
from palaestra.envs.browser.network.proxy import FilteringProxy
from palaestra.envs.browser.network.way import MAX_OWN_LOOKUPS, ProxyLimits, Way

SECONDS = 30
"""Far more than a busy machine takes, and less than for ever."""
QUICK = {"head_seconds": 0.2, "connect_seconds": 0.5, "idle_seconds": 0.2, "connection_seconds": 0.6}


@asynccontextmanager
async def proxied(*servers, **limits):
    """A proxy that reaches these servers, as ok.test."""
    allow = allow_list([f"ok.test:{server.port}=127.0.0.1" for server in servers])
    proxy = FilteringProxy(Way(allow, limits=ProxyLimits(**limits)))
    await proxy.start()
    yield proxy
    async with asyncio.timeout(SECONDS):
        await proxy.close()
    assert not proxy._open


async def opened(proxy):
    return await asyncio.open_connection("127.0.0.1", proxy._server.sockets[0].getsockname()[1])


async def said(proxy, *parts, pause=0.0):
    """All that the proxy answers to these bytes, until it closes."""
    reader, writer = await opened(proxy)
    answer = asyncio.ensure_future(reader.read())
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(pause)
        async with asyncio.timeout(10):
            return await answer
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def get(port, more=b"", line=b"GET http://ok.test:%d/ HTTP/1.1"):
    return (line % port if b"%d" in line else line) + b"\r\nHost: ok.test\r\n" + more + b"\r\n"


@pytest.mark.parametrize(
    ("status", "request_bytes"),
    [
        (403, get(0, line=b"GET / HTTP/1.1")),
        (403, get(0, line=b"GET https://ok.test/ HTTP/1.1")),
        (403, get(0, line=b"GET file:///etc/passwd HTTP/1.1")),
        (403, get(0, line=b"GET ftp://ok.test/ HTTP/1.1")),
        (403, get(0, line=b"GET http://127.0.0.1:%d/ HTTP/1.1")),
        (403, get(0, line=b"GET http://0x7f000001:%d/ HTTP/1.1")),
        (403, get(0, line=b"GET http://ok.test:%d@127.0.0.1/ HTTP/1.1")),
        (403, get(0, line=b"GET http://me@ok.test:%d/ HTTP/1.1")),
        (403, get(0, line=b"GET http://ok.test:%d\\@127.0.0.1/ HTTP/1.1")),
        (403, get(0, line=b"GET http://ok.test:x/ HTTP/1.1")),
        (403, get(0, line=b"GET http://ok.test/ HTTP/1.1")),
        (403, get(0, line=b"CONNECT 127.0.0.1:%d HTTP/1.1")),
        (403, get(0, line=b"CONNECT ok.test:22 HTTP/1.1")),
        (403, get(0, line=b"CONNECT ok.test HTTP/1.1")),
        (403, get(0, line=b"CONNECT me@ok.test:%d HTTP/1.1")),
        (403, get(0, line=b"CONNECT http://ok.test:%d HTTP/1.1")),
        (403, get(0, line=b"CONNECT [::1]:%d HTTP/1.1")),
        (400, get(0, b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n"),
        (400, get(0, b"Content-Length: 4\r\nContent-Length: 5\r\n") + b"abcde"),
        (400, get(0, b"Transfer-Encoding: chunked, identity\r\n") + b"0\r\n\r\n"),
        (400, get(0, b"Content-Length: -1\r\n")),
        (400, get(0, b"Host: other.test\r\n")),
        (400, get(0, b"X-A : 1\r\n")),
        (400, get(0, b"X-A: a\0b\r\n")),
        (400, get(0, line=b"GET http://ok.test:%d/ x HTTP/1.1")),
        (400, b"\x16\x03\x01\x02\x00\x01\x00" + b"\r\n\r\n"),
        (400, b"GET http://ok.test/ HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n"),
        (400, b"GET http://ok.test/ HTTP/1.1\r\n" + b"X: a\r\n" * 20_000),
    ],
)
def test_what_is_no_plain_request_for_an_allowed_host_reaches_nobody(status, request_bytes):
    async def go():
        async with serving() as server, proxied(server) as proxy:
            asked = request_bytes.replace(b":0/", b":%d/" % server.port).replace(b":0\\", b":%d\\" % server.port)
            answer = await said(proxy, asked.replace(b"%d", b"%d" % server.port))
            assert answer.split(b" ")[1] == b"%d" % status, answer[:200]
            assert b"connection: close" in answer.lower()
            counts = proxy.way.counts
            assert (counts.allowed, counts.refused, counts.failed) == (0, status == 403, status == 400)
            assert len(proxy.way.refusals) == counts.refused
            assert server.connections == 0

    asyncio.run(go())


def test_a_refusal_is_a_page_that_says_what_was_refused_as_text():
    async def go():
        async with serving() as server, proxied(server) as proxy:
            answer = await said(proxy, get(0, line=b"GET http://evil.test/<script> HTTP/1.1"))
            assert b"evil.test:80 may not be reached from here" in answer and b"<script>" not in answer
            answer = await said(proxy, get(0, line=b"GET http://<img/ HTTP/1.1"))
            assert b"&lt;img" in answer and b"<img" not in answer

    asyncio.run(go())


def test_a_second_request_behind_the_first_is_never_sent_on():
    hidden = b"GET http://ok.test/admin HTTP/1.1\r\nHost: ok.test\r\n\r\n"

    async def go():
        async with serving() as server, proxied(server) as proxy:
            post = b"POST http://ok.test:%d/ HTTP/1.1" % server.port
            for more, body in (
                (b"Content-Length: 4\r\n", b"abcd"),
                (b"Transfer-Encoding: chunked\r\n", b"4\r\nabcd\r\n0\r\n\r\n"),
                (b"Connection: content-length, close\r\nContent-Length: 4\r\n", b"abcd"),
                (b"", b""),
            ):
                answer = await said(proxy, get(0, more, post) + body + hidden)
                assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1 200") == 1
            assert len(server.heads) == 4 and not any(b"admin" in head for head in server.heads)

    asyncio.run(go())


def test_a_second_answer_behind_the_first_is_never_handed_on():
    async def two(head, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + b"HTTP/1.1 200 OK\r\n\r\npoison")

    async def go():
        async with serving(two) as server, proxied(server) as proxy:
            answer = await said(proxy, get(server.port))
            assert answer.endswith(b"\r\n\r\nok")

    asyncio.run(go())


def test_headers_of_the_connection_stay_and_the_host_is_that_of_the_address():
    more = (
        b"Proxy-Authorization: secret\r\nConnection: X-Mine, keep-alive\r\nX-Mine: secret\r\nKeep-Alive: secret\r\n"
        b"Upgrade: websocket\r\nTE: trailers\r\nX-Other: kept\r\n"
    )

    async def go():
        async with serving() as server, proxied(server) as proxy:
            line = b"GET http://ok.test:%d?a=1 HTTP/1.1" % server.port
            await said(proxy, get(0, more, line).replace(b"Host: ok.test", b"Host: forged.test"))
            head = server.heads[0].lower()
            assert head.startswith(b"get /?a=1 http/1.1\r\n") and b"host: ok.test:%d\r\n" % server.port in head
            assert b"x-other: kept" in head and b"connection: close" in head
            assert not any(word in head for word in (b"secret", b"forged", b"upgrade", b"keep-alive", b"te:"))

    asyncio.run(go())


PIECES = [
    *(b"GET http://ok.test:%d/a HTTP/1.1\r\n", b"POST http://ok.test:%d/a HTTP/1.1\r\n"),
    *(b"CONNECT ok.test:%d HTTP/1.1\r\n", b"GET /admin HTTP/1.1\r\nHost: ok.test\r\n\r\n", b"Host: ok.test\r\n"),
    *(
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding : x\r\n",
    ),
    *(b"Connection: close, content-length\r\n", b"X: y", b"\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n"),
    *(b"\n", b"\r", b" ", b"\t", b"\0", b"\x0b"),
]


@given(st.sampled_from(PIECES[:2]), st.lists(st.sampled_from(PIECES), max_size=8))
def test_of_any_bytes_at_most_one_request_arrives_and_it_is_the_one_that_was_checked(first, pieces):
    async def go():
        async with serving() as server, proxied(server, **QUICK) as proxy:
            asked = (first + b"Host: ok.test\r\n" + b"".join(pieces)).replace(b"%d", b"%d" % server.port)
            reader, writer = await opened(proxy)
            writer.write(asked)
            writer.write_eof()
            async with asyncio.timeout(SECONDS):
                await reader.read()
            writer.transport.abort()
            assert server.connections <= 1 and len(server.heads) <= 1
            for head in server.heads:
                assert head.split(b" ")[1] == b"/a" and head.lower().count(b"\nhost: ok.test:%d\r\n" % server.port) == 1
                framing = [line for line in head.lower().split(b"\r\n") if line.startswith((b"content-l", b"transfer"))]
                assert len(framing) <= 1

    asyncio.run(go())


async def announced(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n")


async def endless(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def crumbs(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n" * 1000)
        await writer.drain()


async def endless_head(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: b\r\n" * 1000)
        await writer.drain()


async def endless_early(head, reader, writer):
    while True:
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        await writer.drain()


async def silent(head, reader, writer):
    await reader.read()


async def drips(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.1)


async def hangs_up(head, reader, writer):
    writer.transport.abort()


async def rubbish(head, reader, writer):
    writer.write(b"\0" * 100_000)


async def short(head, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")


@pytest.mark.parametrize(
    ("behave", "status", "most"),
    [
        (announced, b"502", 0),
        (endless, b"200", 300_000),
        (crumbs, b"200", 20_000),
        (endless_head, b"502", 0),
        (endless_early, b"502", 0),
        (silent, b"504", 0),
        (drips, b"200", 1000),
        (hangs_up, b"502", 0),
        (rubbish, b"502", 0),
        (short, b"200", 1000),
    ],
)
def test_a_hostile_server_is_cut_within_its_bounds_and_what_is_cut_looks_cut(behave, status, most):
    async def go():
        async with serving(behave) as server, proxied(server, response_bytes=100_000, **QUICK) as proxy:
            begun = time.monotonic()
            answer = await said(proxy, get(server.port))
            assert time.monotonic() - begun < SECONDS
            assert answer.split(b" ")[1] == status, answer[:200]
            if status == b"200":
                assert len(answer) < most and not answer.endswith(b"0\r\n\r\n")
            async with asyncio.timeout(SECONDS):
                while server._tasks:
                    await asyncio.sleep(0.01)

    asyncio.run(go())


def test_a_client_that_sends_nothing_or_too_slowly_or_too_much_is_let_go():
    async def go():
        async with serving() as server, proxied(server, request_bytes=1000, **QUICK) as proxy:
            begun = time.monotonic()
            assert await said(proxy) == b""
            assert await said(proxy, *[b"G"] * 12, pause=0.05) == b""
            post = b"POST http://ok.test:%d/ HTTP/1.1\r\nHost: a\r\n" % server.port
            assert await said(proxy, post + b"Content-Length: 9\r\n\r\n1") == b""
            big = await said(proxy, post + b"Content-Length: 100000\r\n\r\n" + b"x" * 100_000)
            assert big.startswith(b"HTTP/1.1 413")
            assert time.monotonic() - begun < SECONDS
        async with serving() as server, proxied(server, connections=3, head_seconds=3.0) as proxy:
            held = [await opened(proxy) for _ in range(3)]
            async with asyncio.timeout(SECONDS):
                while len(proxy._open) < 3:
                    await asyncio.sleep(0.01)
            assert await said(proxy, get(server.port)) == b"", "a fourth connection is served"
            await asyncio.gather(*(reader.read() for reader, _ in held))
            assert (await said(proxy, get(server.port))).startswith(b"HTTP/1.1 200")
            for _, writer in held:
                writer.transport.abort()

    asyncio.run(go())


def looking_up():
    return sum(thread.name == "palaestra-lookup" for thread in threading.enumerate())


def test_a_page_that_asks_for_many_slow_names_holds_up_no_other_episode():
    gate = threading.Event()

    async def go():
        allow, limits = allow_list("public"), ProxyLimits(connect_seconds=4.0, connections=1000)
        flooded = FilteringProxy(Way(allow, limits, lambda name: gate.wait(30) and []))
        other = FilteringProxy(Way(allow, limits, lambda name: ["127.0.0.1"]))
        await flooded.start()
        await other.start()
        before = looking_up()  # Of other tests.
        for number in range(2):  # Of the first flood's look-ups all hang on when the second one comes.
            flood = asyncio.gather(*(said(flooded, get(0, line=b"CONNECT slow.org:443 HTTP/1.1")) for _ in range(100)))
            await asyncio.sleep(0.2)
            assert b"not public" in await said(other, get(0, line=b"CONNECT quick.org:443 HTTP/1.1"))
            if not number:  # The second flood finds no free look-up, and is refused at once.
                assert not flood.done(), "it was answered when the flood was over"
            assert looking_up() - before <= MAX_OWN_LOOKUPS + 1  # The one that has just answered may be ending.
            assert {answer.split(b" ")[1] for answer in await flood} <= {b"502", b"504"}
        await flooded.close()
        await other.close()

    try:
        asyncio.run(go())
    finally:
        gate.set()


async def tunnel(proxy, port):
    reader, writer = await opened(proxy)
    writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\nHost: ok.test\r\n\r\n" % port)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


def test_a_tunnel_carries_bytes_both_ways_and_ends_by_either_side_by_idleness_and_by_the_episodes_cap():
    async def echo(head, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def go():
        async with serving(echo) as server, proxied(server, episode_bytes=500_000, idle_seconds=0.5) as proxy:
            reader, writer = await opened(proxy)
            writer.write(b"CONNECT ok.test:%d HTTP/1.1\r\nHost: a\r\n\r\nearly\r\n\r\nbird" % server.port)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"!")
            writer.write_eof()
            assert await reader.read() == b"bird!"
            writer.transport.abort()
            assert server.heads == [b"early\r\n\r\n"]

            begun = time.monotonic()
            reader, writer = await tunnel(proxy, server.port)
            assert await reader.read() == b"" and 0.1 < time.monotonic() - begun < 10  # Half-open, idle.
            writer.transport.abort()

            reader, writer = await tunnel(proxy, server.port)
            got = 0
            writer.write(b"\r\n\r\n")
            while True:
                writer.write(b"x" * 10_000)
                part = await reader.read(65536)
                got += len(part)
                if not part:
                    break
            assert 200_000 < got < 500_000
            assert b"bytes an episode have passed" in await said(proxy, get(server.port))
            writer.transport.abort()

    asyncio.run(go())


def test_a_proxy_that_is_closed_cuts_its_tunnels_and_takes_nothing_more():
    async def go():
        async with serving(silent) as server, proxied(server) as proxy:
            reader, writer = await tunnel(proxy, server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            while not server.heads:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(2):
                await proxy.close()
                assert await reader.read() == b""
                while server._tasks:
                    await asyncio.sleep(0.01)
            with pytest.raises((OSError, IndexError)):
                await opened(proxy)
            writer.transport.abort()
            await proxy.close()

    asyncio.run(go())
