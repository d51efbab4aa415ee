"""The text browser on servers: what they send and how they fail is an observation within the deadline."""

import asyncio
import gzip
import time
import tracemalloc

import pytest
from web_servers import server_tls, serving

from palaestra.envs.browser.site import Pages
from palaestra.envs.browser.text.browser import TextBrowser
from palaestra.errors import ToolError, UsageError

HTML = b"Content-Type: text/html\r\n"


def answer(body, head=HTML, status=b"200 OK"):
    async def behave(request, reader, writer):
        writer.write(b"HTTP/1.1 " + status + b"\r\n" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return behave


async def drip(request, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n" + HTML + b"\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def silent(request, reader, writer):
    await asyncio.sleep(60)


async def flood(request, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n" + HTML + b"\r\n")
    while True:
        writer.write(b"<p>" + b"x" * 60_000)
        await writer.drain()


async def garbage(request, reader, writer):
    writer.write(b"\x00\xff no HTTP at all\r\n\r\n")


def gone(request, reader, writer):
    writer.transport.abort()
    return asyncio.sleep(0)


async def crumbs(request, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n" + HTML + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n" * 10_000)
        await writer.drain()


async def morsels(request, reader, writer):
    writer.write(b"HTTP/1.1 200 OK\r\n" + HTML + b"Transfer-Encoding: chunked\r\n\r\n")
    writer.write((b"10\r\n" + b"x" * 16 + b"\r\n") * 3_000 + b"0\r\n\r\n")


async def cookie(request, reader, writer):
    given = b"Set-Cookie: a=1\r\nSet-Cookie: b=2; Path=/\r\n"
    await answer(b"<p>" + request.replace(b"\r\n", b"<br>"), HTML + given)(request, reader, writer)


async def visit(behave, seconds=5.0, times=1, tls=None, max_bytes=100_000):
    """Visit a server that behaves so, `times`; the last page, and that the tab lives on."""
    async with serving(behave, tls) as server:
        host = f"shop.test:{server.port}"
        browser = TextBrowser(allow=[f"{host}=127.0.0.1"], max_bytes=max_bytes)
        tab = browser.session({"near.test": Pages({"/": "near"})})
        try:
            for _ in range(times):
                page = await tab.open(f"{'https' if tls else 'http'}://{host}/", seconds)
            return page
        finally:
            assert (await tab.open("http://near.test/")).lines == ("near",)
            for transport in browser._transports.values():
                await transport.aclose()


def test_cookies_of_a_server_come_back_to_it():
    lines = asyncio.run(visit(cookie, times=2)).lines
    assert "Cookie: a=1; b=2" in lines


@pytest.mark.parametrize(
    ("behave", "seconds", "reason"),
    [
        (drip, 0.4, "did not come within"),
        (silent, 0.4, "did not come within"),
        (garbage, 25.0, "could not be loaded"),
        (gone, 25.0, "loaded"),
    ],
)
def test_a_server_that_fails_is_told_within_the_deadline(behave, seconds, reason):
    begun = time.monotonic()
    with pytest.raises(ToolError, match=reason):
        asyncio.run(visit(behave, seconds))
    assert time.monotonic() - begun < 30, "the servers keep silent for 60 s"


def test_what_has_no_end_is_cut():
    page = asyncio.run(visit(flood))
    assert 90_000 < sum(map(len, page.lines)) < 101_000


def test_a_page_in_too_small_parts_is_given_up_while_other_work_goes_on():
    async def go():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count())
        with pytest.raises(ToolError, match="in too small parts"):
            await visit(crumbs, seconds=60)
        assert turns > 1000, "not a part was read without a turn for others"
        assert "x" * 1000 in "".join((await visit(morsels)).lines)
        other.cancel()

    asyncio.run(go())


def test_a_packed_page_is_unpacked_no_further_than_is_read():
    bomb = gzip.compress(b"<p>" + b"x" * 20_000_000)
    tracemalloc.start()
    page = asyncio.run(visit(answer(bomb, HTML + b"Content-Encoding: gzip\r\n")))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10e6
    assert 90_000 < sum(map(len, page.lines)) < 101_000
    with pytest.raises(ToolError, match="could not be loaded"):
        asyncio.run(visit(answer(b"no gzip", HTML + b"Content-Encoding: gzip\r\n")))


def test_a_download_is_named_and_not_loaded():
    page = asyncio.run(visit(answer(b"%PDF" * 100, b"Content-Type: application/pdf\r\n")))
    assert (page.lines, page.url) == ((), "") and "application/pdf, 400 bytes" in page.note


def test_a_certificate_that_nobody_signed_is_an_error_of_the_page():
    with pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(visit(None, tls=server_tls()))


@pytest.mark.parametrize(
    "target", [b"http://127.0.0.1:{port}/", b"http://[::ffff:7f00:1]:{port}/", b"file:///etc/passwd"]
)
def test_a_redirect_leads_to_no_host_that_is_not_allowed(target):
    async def go():
        async with serving() as inner:
            where = target.replace(b"{port}", str(inner.port).encode())
            with pytest.raises(ToolError):
                await visit(answer(b"", b"Location: " + where + b"\r\n", b"302 Found"))
            assert inner.connections == 0

    asyncio.run(go())


def test_without_an_allow_list_nothing_is_reached_and_a_wrong_one_is_refused_at_once():
    async def go():
        async with serving() as server:
            tab = TextBrowser().session({})
            with pytest.raises(ToolError, match="no host can be reached"):
                await tab.open(f"http://127.0.0.1:{server.port}/")
            assert server.connections == 0

    asyncio.run(go())
    with pytest.raises(UsageError, match="allow-list"):
        TextBrowser(allow="http://x/")
