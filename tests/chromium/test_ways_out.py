"""A hostile page in a real Chromium: whatever it tries, nothing arrives that the allow-list does not allow.

The same page is shown to a Chromium that nothing holds back, where its ways do lead out.
"""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hostile_page import ALLOWED, EXPECTED, PAGE, WORKER
from web_servers import Server, server_tls, serving

from palaestra.envs.browser.chromium import engine, session
from palaestra.envs.browser.chromium.browser import ChromiumBrowser
from palaestra.envs.browser.chromium.engine import find_chromium
from palaestra.envs.browser.chromium.isolation import FLAGS, check_scheme
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.network.addresses import AddressRefused
from palaestra.errors import ToolError

pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("chromium_path")]
SECONDS = 15.0
"""In which an unguarded page's ways lead out; a guarded one gets them all."""
PROBES = {"[2001:4860:4860::8888]:443", "127.0.0.1:443"}
"""Where Chromium connects UDP sockets that send nothing, to see whether there is a route: to an address of IPv6, and to
the proxy's own, for where that is IPv4 in a network of IPv6 alone (NAT64)."""
REFUSED = "refused: "
TRIED = ("bad", "bad_tls", "mapped", "named", "local", "named_tls", "second")


class Packets(asyncio.DatagramProtocol):
    """Counts what arrives by UDP."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def datagram_received(self, data: bytes, address: object) -> None:
        self.seen.append(data)


class World:
    """The servers: what may be reached, and what must not be."""

    def __init__(self) -> None:
        self.arrived: set[str] = set()
        """Names of ways that led somewhere."""
        self.packets = Packets()
        self.ok = self.ok_tls = self.bad = self.bad_tls = self.second = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "World":
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self.packets, local_addr=("0.0.0.0", 0))
        self._stack.callback(transport.close)
        self.udp = transport.get_extra_info("sockname")[1]
        self.ok_server = await self._open(self._good)
        self.tls_server = await self._open(self._note, tls=True)
        self.bad_server, self.bad_tls_server = await self._open(self._note), await self._open(self._note, tls=True)
        six = await asyncio.start_server(self.bad_server.accept, "::1", self.bad_server.port)
        self._stack.callback(six.close)
        self.address = outward()
        other = await asyncio.start_server(self.bad_server.accept, self.address, 0)
        self._stack.callback(other.close)
        bad, bad_tls = self.bad_server.port, self.bad_tls_server.port
        self.values = {
            "bad": f"http://127.0.0.1:{bad}", "bad_tls": f"https://127.0.0.1:{bad_tls}",
            "hex": f"http://0x7f000001:{bad}", "decimal": f"http://2130706433:{bad}", "short": f"http://127.1:{bad}",
            "mapped": f"http://[::1]:{bad}", "named": f"http://evil.test:{bad}", "local": f"http://localhost:{bad}",
            "named_tls": f"https://evil.test:{bad_tls}", "ok_tls": f"https://ok.test:{self.tls_server.port}",
            "second": f"http://{self.address}:{other.sockets[0].getsockname()[1]}",
            "udp": json.dumps([f"127.0.0.1:{self.udp}", f"{self.address}:{self.udp}"]), "turn": f"127.0.0.1:{bad}",
        }  # fmt: skip
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self._stack.aclose()

    async def _open(self, behave: Callable[..., Awaitable[None]], tls: bool = False) -> Server:
        return await self._stack.enter_async_context(serving(behave, server_tls() if tls else None))

    @property
    def url(self) -> str:
        return f"http://ok.test:{self.ok_server.port}/"

    @property
    def allowed(self) -> list[str]:
        return [f"ok.test:{server.port}=127.0.0.1" for server in (self.ok_server, self.tls_server)]

    async def _note(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrived.add(head.split(b" ")[1].decode().partition("?")[0].strip("/"))
        writer.write(
            b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )

    async def _good(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = urlsplit(head.split(b" ")[1].decode())
        kind, more, body = "text/html", "", ""
        if at.path.startswith("/allowed"):
            self.arrived.add(at.path[1:])
        if at.path == "/redirect":
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {parse_qs(at.query)['to'][0]}\r\n\r\n".encode())
            return
        if at.path == "/":
            body = PAGE % self.values
        elif at.path == "/policy":
            more = f"Content-Security-Policy: img-src 'none'; report-uri {self.values['bad']}/policy-report\r\n"
            body = "<img src=/x>"
        elif at.path.endswith(".js"):
            kind, bad = "text/javascript", self.values["bad"]
            body = WORKER.format(bad=bad, ws=bad.replace("http", "ws"), name=at.path[1:-3])
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}\r\n{body}".encode())


def outward() -> str:
    """An address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # Sends nothing.
        return str(probe.getsockname()[0])
    return "127.0.0.2"


def on_a_thread(work: Awaitable[object]) -> None:
    """Run it with a loop of its own: the other tests here keep one running on this thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result(180)


def secure(world: World) -> str:
    """Service workers, WebTransport and the like are for secure pages only: let this one pass for such a page."""
    return f"--unsafely-treat-insecure-origin-as-secure=http://ok.test:{world.ok_server.port}"


async def unguarded(world: World, log: Path, enough: frozenset[str]) -> None:
    """Open the page in a Chromium as Playwright starts it, until enough has arrived or the time is over."""
    from playwright.async_api import async_playwright

    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--host-resolver-rules=MAP *.test 127.0.0.1", secure(world)]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=find_chromium(), args=[*flags, f"--log-net-log={log}"], timeout=60_000
        )
        context = await browser.new_context(ignore_https_errors=True)
        page = await context.new_page()
        await page.goto(world.url, wait_until="commit")
        await until(lambda: enough <= world.arrived, SECONDS)
        await asyncio.sleep(1)
        await browser.close()


async def until(condition: Callable[[], bool], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.05)


def test_a_chromium_that_nothing_holds_back_is_led_out_by_every_way(tmp_path: Path) -> None:
    async def go() -> None:
        async with World() as world:
            log = tmp_path / "log.json"
            enough = EXPECTED | ALLOWED
            await unguarded(world, log, enough)
            assert enough <= world.arrived, f"these lead nowhere: {sorted(enough - world.arrived)}"
            assert any(packet[4:8] == bytes.fromhex("2112a442") for packet in world.packets.seen), "no STUN was seen"
            assert any(packet[0] & 0xC0 == 0xC0 for packet in world.packets.seen), "no QUIC was seen"
            assert any("leak-by-name" in about for about in looked_up(log)), "no name was looked up"

    on_a_thread(go())


@dataclass
class Guarded:
    """What came of the page in the browser of an agent."""

    world: World
    port: int = 0
    """The proxy's."""
    refused: set[str] = field(default_factory=set)
    """Hosts and ports."""
    told: dict[str, str] = field(default_factory=dict)
    """What an agent is told of addresses that it opens itself; the last one where the proxy is gone."""
    did: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, chromium_path: str) -> Guarded:
    """The page has had its time in the browser of an agent, which is closed."""
    log = tmp_path_factory.mktemp("guarded") / "log.json"
    results: list[Guarded] = []

    async def go() -> None:
        async with World() as world:
            results.append(found := Guarded(world))
            patch.setattr(engine, "FLAGS", (*FLAGS, secure(world), f"--log-net-log={log}"))
            patch.setitem(session.SETTING, "ignore_https_errors", True)
            browser = ChromiumBrowser(allow=world.allowed)
            tab = browser.session({})
            way = tab._way
            way.refusals = deque(maxlen=1000)
            await tab.open(world.url)
            proxy = tab._proxy
            assert proxy is not None and proxy._server is not None
            found.port = proxy._server.sockets[0].getsockname()[1]
            await asyncio.sleep(SECONDS)
            redirect = f"{world.url}redirect?to={world.values['bad']}/agent"
            for url in (world.values["bad"], world.values["bad_tls"], redirect, "file:///etc/passwd"):
                found.told[url] = await told(tab, url)
            await asyncio.wrap_future(tab._loop.submit(proxy.close()))
            found.told["without"] = await told(tab, f"{world.url}allowed-after-the-proxy")
            running = browser._engine._current
            assert running is not None
            await asyncio.wrap_future(browser._loop.submit(running.browser.close()))  # So that its log is whole.
            await asyncio.to_thread(browser.close)
            found.refused = {reason.split(" ")[0] for reason in way.refusals}
            found.did, found.looked_up = logged(log), looked_up(log)

    with pytest.MonkeyPatch.context() as patch:
        on_a_thread(go())
    return results[0]


def test_of_an_agents_browser_only_what_is_allowed_arrives(guarded: Guarded) -> None:
    world = guarded.world
    assert world.arrived == ALLOWED
    assert world.bad_server.connections == world.bad_tls_server.connections == 0
    assert guarded.refused >= {urlsplit(world.values[name]).netloc for name in TRIED}


def test_an_agents_browser_connects_to_its_proxy_alone(guarded: Guarded) -> None:
    met = {about["address"] for about in guarded.did["TCP_CONNECT_ATTEMPT"] if "address" in about}
    assert met == {f"127.0.0.1:{guarded.port}"}


def test_no_datagram_leaves_an_agents_browser(guarded: Guarded) -> None:
    assert guarded.world.packets.seen == []
    assert "UDP_BYTES_SENT" not in guarded.did
    assert {about["address"] for about in guarded.did.get("UDP_CONNECT", []) if "address" in about} <= PROBES


def test_an_agents_browser_looks_no_name_up(guarded: Guarded) -> None:
    assert guarded.looked_up, "its log knows nothing of names"
    assert not any("leak-by-name" in about or "evil" in about for about in guarded.looked_up)


def test_an_agent_opens_nothing_that_is_not_allowed_and_nothing_without_the_proxy(guarded: Guarded) -> None:
    *far, file, without = guarded.told.values()
    assert all("may not be reached from here" in text for text in far)
    assert len(far) == 3
    assert "addresses begin with http" in file
    assert without.startswith(REFUSED)
    assert "allowed-after-the-proxy" not in guarded.world.arrived


async def told(tab: ChromiumSession, url: str) -> str:
    """What an agent sees of an address, or why it sees nothing."""
    try:
        return "\n".join((await tab.open(url)).lines)
    except ToolError as error:
        return f"{REFUSED}{error}"


def logged(log: Path) -> dict[str, list[dict[str, object]]]:
    """What Chromium's network service did, from its own log: by kind of event, what the event was about."""
    written = json.loads(log.read_text())
    names = {number: name for name, number in written["constants"]["logEventTypes"].items()}
    found: dict[str, list[dict[str, object]]] = {}
    for event in written["events"]:
        found.setdefault(names[event["type"]], []).append(event.get("params", {}))
    return found


def looked_up(log: Path) -> list[str]:
    """Names that it asked for, and those that it was told to make others of."""
    return [str(about) for kind, found in logged(log).items() if kind.startswith("HOST_RESOLVER") for about in found]


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "FILE:///etc/passwd", " file:/etc/passwd", "chrome://version", "view-source:http://ok.test",
     "about:srcdoc", "javascript:1", "data:text/html,a", "blob:http://ok.test/1", "ftp://ok.test/", "ok.test", ""],
)  # fmt: skip
def test_an_address_that_is_not_of_the_web_is_not_opened(url: str) -> None:
    with pytest.raises(AddressRefused):
        check_scheme(url)
    check_scheme("https://ok.test/")
    check_scheme("about:blank")
