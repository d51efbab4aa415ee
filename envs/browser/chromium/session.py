"""One agent's tab in Chromium: a separate context, opened at the first action, and the actions of an agent.

Not supported: snapshots. A page's scripts, timers and connections cannot be copied, and replaying an episode's actions
would not lead to the same page. To branch an episode, use the text browser.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from urllib.parse import urljoin, urlsplit

from palaestra.endpoint.background import BackgroundLoop
from palaestra.envs.browser.browser import BrowserSession, Page
from palaestra.envs.browser.chromium.engine import ChromiumProcesses, Running
from palaestra.envs.browser.chromium.input import click, type_text
from palaestra.envs.browser.chromium.isolation import check_scheme, context_options
from palaestra.envs.browser.chromium.serving import serve
from palaestra.envs.browser.chromium.tab import Tab, script
from palaestra.envs.browser.format import escape, finish_lines, without_marks
from palaestra.envs.browser.network.addresses import Unreached, place_of
from palaestra.envs.browser.network.allow import AllowList
from palaestra.envs.browser.network.proxy import FilteringProxy
from palaestra.envs.browser.network.way import Way
from palaestra.envs.browser.site import Site
from palaestra.errors import Broken, MissingExtra, ToolError, UsageError

T = TypeVar("T")
GRACE_SECONDS = 10.0
"""Seconds beyond an action's timeout, after which the loop itself counts as dead."""
OPEN_SECONDS = 60.0
"""Seconds to open a context, which may start a browser first. They do not count against the agent."""
LOAD_SHARE, WORK_SHARE, RESCUE_SHARE = 0.7, 0.8, 0.1
"""Shares of an action's timeout: until a loading page is shown as is; until it counts as hung; to stop its script."""
PATIENCE_SECONDS = 0.2
MAX_KEY, MAX_URL = 40, 8_192
MAX_SHOT_BYTES = 4 * 2**20
SETTING = {
    "viewport": {"width": 1024, "height": 768},
    "locale": "en-US",
    "timezone_id": "UTC",
    "reduced_motion": "reduce",
}
"""Settings of a context, the same on every machine."""


class ChromiumSession(BrowserSession):
    """One agent's tab. Its actions run one after another, even if they are called at the same time."""

    def __init__(
        self, loop: BackgroundLoop, engine: ChromiumProcesses, allow: AllowList, sites: Mapping[str, Site], view: str
    ) -> None:
        self._loop, self._engine, self._view = loop, engine, view
        self._way = Way(allow)
        self._sites = sites
        self._proxy: FilteringProxy | None = None
        self._place: tuple[Running, Any] | None = None
        self._tab: Tab | None = None
        self._at = ""
        """The last known address of the page."""
        self._turn = asyncio.Lock()
        self._closed = self._expected = False

    # The interface of sessions.

    async def open(self, url: str, seconds: float = 30.0) -> Page:
        async def work(tab: Tab) -> None:
            address = url.strip()
            if address.partition("/")[0].lower() in self._sites or not (self._at or urlsplit(address).scheme):
                address = f"http://{address}"
            address = urljoin(self._at, address)
            check_scheme(address)
            if len(address) > MAX_URL:
                raise ToolError(f"the address has {len(address)} characters; at most {MAX_URL} are opened")
            await tab.go(address)

        return await self._action(work, seconds)

    async def click(self, number: int, seconds: float = 30.0) -> Page:
        return await self._action(lambda tab: click(tab, number), seconds)

    async def type(self, number: int, text: str, seconds: float = 30.0) -> Page:
        async def work(tab: Tab) -> None:
            done = await tab.act("fill", number, text)
            if text and not done.get("done"):
                await type_text(tab, text)

        return await self._action(work, seconds)

    async def select(self, number: int, option: str, seconds: float = 30.0) -> Page:
        return await self._action(lambda tab: tab.act("choose", number, option), seconds)

    async def submit(self, number: int, seconds: float = 30.0) -> Page:
        return await self._action(lambda tab: tab.act("submit", number), seconds)

    async def press(self, key: str, seconds: float = 30.0) -> Page:
        """Press a key on the element with the focus: Enter, ArrowDown, a, Control+a."""

        async def work(tab: Tab) -> None:
            try:
                await tab.page.keyboard.press(key[:MAX_KEY])
            except Exception as error:
                if "Unknown key" not in str(error):
                    raise
                raise ToolError(f"no key is {key[:MAX_KEY]!r}; keys are Enter, Tab, ArrowDown, a, Control+a") from None

        return await self._action(work, seconds)

    async def back(self, seconds: float = 30.0) -> Page:
        return await self._action(lambda tab: tab.back(), seconds)

    async def scroll(self, down: bool = True, seconds: float = 30.0) -> Page:
        """Scroll the page, or its largest part that can be scrolled."""

        async def work(tab: Tab) -> None:
            if message := (await tab.act("scroll", down)).get("note"):
                tab.note(message)

        return await self._action(work, seconds)

    async def look(self, seconds: float = 30.0) -> Page:
        """Return the page as it is now. If nothing changes, wait a moment first: a repeated look expects a change."""
        return await self._action(None, seconds)

    def snapshot(self) -> NoReturn:
        """Raise UsageError, because a live page cannot be copied."""
        raise UsageError(
            "a page in Chromium has no snapshot: its scripts and connections cannot be copied; use the text browser "
            "(browser='text') for branches of an episode"
        )

    def close(self) -> None:
        """Close the context, even during an action. It may be called twice, from any thread."""
        if not self._closed:
            self._closed = True
            with suppress(Broken):  # The browser is closed, and so is this.
                self._loop.submit(self._leave())

    # Beyond the interface.

    async def screenshot(self, seconds: float = 30.0, whole: bool = False) -> bytes:
        """Return a PNG of the visible part of the page, or of the whole page if `whole` is true."""

        async def work(tab: Tab) -> bytes:
            image: bytes = await tab.page.screenshot(full_page=whole, timeout=1000 * seconds)
            if len(image) > MAX_SHOT_BYTES:
                raise ToolError(f"the picture has {len(image)} bytes, more than {MAX_SHOT_BYTES}; take a smaller part")
            return image

        return await self._wait(self._within(seconds, work), seconds)

    async def evaluate(self, expression: str, seconds: float = 30.0) -> Any:
        """Evaluate JavaScript in the page, for authors of environments. The page's scripts can fake the result."""
        return await self._wait(self._within(seconds, lambda tab: tab.evaluate(expression, page_world=True)), seconds)

    async def unplug(self) -> None:
        """Close the session's network access. Call it on the browser's loop."""
        if self._proxy is not None:
            await self._proxy.close()

    # Private methods.

    async def _wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        return await self._loop.outcome(work, seconds + OPEN_SECONDS + GRACE_SECONDS, blocking=False)

    async def _action(self, work: Callable[[Tab], Awaitable[Any]] | None, seconds: float) -> Page:
        async def both(tab: Tab) -> Page:
            until = asyncio.get_running_loop().time() + LOAD_SHARE * seconds
            refused, lost = self._way.counts.refused, self._way.unreached
            lost.clear()
            try:
                if work is not None:
                    await work(tab)
                page = await self._page(tab, until, 0.0 if work else PATIENCE_SECONDS)
                for failure in lost:  # The proxy has answered instead of this host.
                    if failure.is_service or failure.place == place_of(page.url):
                        raise failure.blame(f"{page.url[:200]} could not be opened: {failure}")
                return page
            except ToolError as error:
                if lost and not isinstance(error, Unreached):
                    raise lost[-1].blame(f"{error}: {lost[-1]}") from None
                if self._way.counts.refused > refused:
                    raise ToolError(f"{error}: {self._way.refusals[-1]}") from None
                raise

        return await self._wait(self._within(seconds, both), seconds)

    async def _page(self, tab: Tab, until: float, patience: float) -> Page:
        accessible = self._view == "accessibility"
        view = await tab.view(until, accessible, patience)
        lines = finish_lines(view["lines"])
        if accessible:
            tree = without_marks(await tab.page.locator("body").aria_snapshot())
            lines = finish_lines([*tree.splitlines(), *view["lines"]])
        if view["status"] >= 400:
            tab.note(f"status {view['status']}")
        if view["missed"]:
            tab.note(view["missed"])
        if view["cut"]:
            tab.note("the page is very long and was cut")
        if view["url"].startswith("http"):
            self._at = view["url"]
        note = "; ".join(tab.notes)
        tab.notes.clear()
        return Page(view["url"], view["title"], lines, view["elements"], escape(note))

    async def _within(self, seconds: float, work: Callable[[Tab], Awaitable[T]]) -> T:
        """Run work on the tab, within its timeout. Only one work runs at a time."""
        async with self._turn:
            tab = await self._ready()
            try:
                async with asyncio.timeout(WORK_SHARE * seconds):
                    return await tab.run(work(tab))
            except TimeoutError:
                if await tab.rescue(RESCUE_SHARE * seconds):
                    raise ToolError(f"the page did not get ready within {seconds:g} s; look at it again") from None
                tab.end("the page hung and was closed")
                tab.refuse()
            finally:
                if tab.dead and self._tab is tab:
                    self._tab = None
                    tab.begin(tab.close())

    async def _ready(self) -> Tab:
        if self._closed:
            raise Broken("the tab is closed")
        if self._tab is None:
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    self._tab = await self._open_tab()
            except TimeoutError:
                raise Broken(
                    f"Chromium gave no page within {OPEN_SECONDS:g} s; more episodes than max_contexts at once wait"
                ) from None
            except Exception as error:
                if isinstance(error, Broken | UsageError | MissingExtra):
                    raise
                raise Broken(f"Chromium gave no page: {str(error).splitlines()[0][:300]}") from error
        return self._tab

    async def _open_tab(self) -> Tab:
        if self._place is None:
            await self.unplug()
            self._proxy = FilteringProxy(self._way)
            address = await self._proxy.start()
            self._place = await self._engine.open({**SETTING, **context_options(address)}, self._ended)
            context = self._place[1]
            await context.add_init_script(script("listeners.js"))
            context.on("page", self._appeared)
        context = self._place[1]
        self._expected = True
        page = await context.new_page()
        tab = Tab(page, await context.new_cdp_session(page))
        await tab.prepare()
        await serve(tab, self._sites)
        return tab

    def _ended(self) -> None:
        if self._tab is not None:
            self._tab.end("Chromium ended by itself", broken=True)

    def _appeared(self, page: Any) -> None:
        """Close each window that the page opens, because an episode has one tab; keep the page that we opened."""
        if self._expected:
            self._expected = False
        elif self._tab is not None:
            self._tab.begin(page.close())

    async def _leave(self) -> None:
        async with self._turn:
            if self._tab is not None:
                self._tab.end("the tab is closed", broken=True)
            if self._place is not None:
                await self._engine.leave(*self._place)
            await self.unplug()
