"""The browser as tools: a window on the page's numbered text, and actions on its numbered elements.

`ReadingBrowser` opens pages, follows links, searches and scrolls; `WebBrowser` also fills in and sends forms. Both work
with every backend of `envs.browser`. A subclass defines the sites that this process serves (`sites`), the first page
(`home`), and the sites' state that the reward may see (`final`). Left out: which hosts may be reached (the browser's
option `allow`), and the text of a page (`envs.browser.format`).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from palaestra.envs.browser.browser import BrowserSession, Page
from palaestra.envs.browser.format import escape
from palaestra.envs.browser.network.addresses import Unreached, place_of
from palaestra.envs.core.backends import Where
from palaestra.envs.core.tool import tool
from palaestra.envs.core.window import find, view, window_begin, window_end
from palaestra.envs.tools.browser_base import BrowserToolkit, in_browser
from palaestra.envs.tools.budgets import BudgetUsage, with_timeout
from palaestra.episode import Task
from palaestra.errors import Broken, ToolError

__all__ = ["BrowserToolkit", "ReadingBrowser", "WebBrowser", "in_browser"]

START_SECONDS = 60.0
"""Seconds that the outer timeout leaves beyond the time of a call, so that no page exceeds it."""
MAX_VISITED = 1000
"""Maximum number of visited pages that the final state names; later ones are left out."""
MAX_URL = 300
"""Maximum characters of an address that are shown."""
PageAction = Callable[[BrowserSession, float], Awaitable[Page]]


class ReadingBrowser(BrowserToolkit):
    """Opens pages and follows links."""

    def __init__(self, browser: Where = "text") -> None:
        super().__init__(browser)
        self._session: BrowserSession | None = None
        self.set_tools(with_timeout(self.tools, 2 * self.call_seconds + START_SECONDS))
        self._run_in_place_if_possible()

    def home(self, task: Task) -> str:
        """Return the address of the page with which the episode begins, or "" if it begins without a page."""
        return ""

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Open a new tab. The agent's first call loads the first page."""
        self.close()
        self.served, self._home, self.usage = self.sites(task), self.home(task), BudgetUsage()
        self._begin(self._browser().session(self.served), None, 1, [])

    def close(self) -> None:
        """Close the tab."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def final(self) -> Mapping[str, Any]:
        """Return the addresses that were visited, in order; a subclass adds the state of its sites."""
        return {"browser": {"visited": list(self._visited)}}

    def snapshot(self) -> Any:
        """Return sites, budgets, tab, page, window and visited addresses."""
        return self.served, self._home, self.usage, self._tab.snapshot(), self._page, self._first, list(self._visited)

    def restore(self, state: Any) -> None:
        """Continue from a snapshot."""
        self.close()
        self.served, self._home, self.usage, tab, page, first, visited = state
        self._begin(self._browser().restore(tab), page, first, list(visited))

    @tool
    async def open(self, url: str = "") -> str:
        """Open an address and read the page. Without an address: read the open page again, from its top.

        Args:
            url: a full address, or one relative to the open page
        """
        if not url.strip():
            return await self._act(lambda tab, seconds: tab.look(seconds))
        return await self._act(lambda tab, seconds: tab.open(url, seconds), bool(self._home) and "://" not in url)

    @tool
    async def click(self, number: int) -> str:
        """Click on a numbered link.

        Args:
            number: the number in the brackets, 3 for [3:link Home]
        """

        async def follow(tab: BrowserSession, seconds: float) -> Page:
            page = await tab.look(seconds)
            link_pattern = re.compile(rf"\[{number}:(\w+)")
            kind = next((match[1] for line in page.lines if (match := link_pattern.search(line))), None)
            if kind not in ("link", None):
                raise ToolError(f"[{number}] is a {kind}; only links can be clicked here")
            return await tab.click(number, seconds)

        return await self._act(follow)

    @tool
    async def back(self) -> str:
        """Go back to the page before."""
        return await self._act(lambda tab, seconds: tab.back(seconds))

    @tool
    async def find(self, text: str) -> str:
        """Find a text on the whole page: the lines that hold it, with their line numbers.

        Args:
            text: words as they stand on the page, in any case
        """

        async def search(seconds: float) -> str:
            return find((await self._shown(seconds)).lines, text)

        return await self._in_turn(search)

    @tool
    async def scroll(self, down: bool = True, line: int = 0) -> str:
        """Show the next part of a long page.

        Args:
            down: false shows the part before
            line: show the part that begins at this line number instead
        """

        async def move(seconds: float) -> str:
            page = await self._shown(seconds)
            last = window_end(page.lines, self._first, self.window_tokens)
            if line:
                if not 1 <= line <= len(page.lines):
                    raise ToolError(f"there is no line {line}; the lines are 1 to {len(page.lines)}")
                self._first = line
            elif not down:
                if self._first == 1:
                    raise ToolError("this is the top of the page")
                self._first = window_begin(page.lines, self._first - 1, self.window_tokens)
            else:
                if last >= len(page.lines):
                    self._page = page = await self._tab.scroll(True, seconds)
                if last >= len(page.lines):
                    raise ToolError("this is the end of the page")
                self._first = last + 1
            return self._text(page)

        return await self._in_turn(move)

    # Methods that tools of subclasses use too.

    async def _act(self, action: PageAction, on_page: bool = True) -> str:
        """Do an action and return the page. Calls run one after another: each acts on the page that the last left."""

        async def work(seconds: float) -> str:
            if on_page:
                await self._shown(seconds)
            before, self._page = self._page, await action(self._tab, seconds)
            self._visit(self._page)
            same = before is not None and before.url == self._page.url and before.title == self._page.title
            self._first = min(self._first, max(len(self._page.lines), 1)) if same else 1
            return self._text(self._page)

        return await self._in_turn(work)

    async def _in_turn(self, work: Callable[[float], Awaitable[str]]) -> str:
        """Do a call's work after the earlier calls have ended. It waits for them at most `call_seconds`."""
        if self._turn.locked():  # Never true if no tool waits and no loop runs.
            try:
                async with asyncio.timeout(self.call_seconds):
                    await self._turn.acquire()
            except TimeoutError:
                raise ToolError("the calls before this one took too long, so it was not run") from None
        else:
            await self._turn.acquire()
        try:
            return await self.within_budget(work)
        except Unreached as lost:  # The author chose the page where the episode begins.
            if lost.place == place_of(self._home):
                raise Broken(str(lost)) from lost
            raise ToolError(escape(str(lost))) from lost
        except ToolError as error:  # It may name an address or an option that the page chose.
            raise ToolError(escape(str(error))) from error
        finally:
            self._turn.release()

    async def _shown(self, seconds: float) -> Page:
        """Return the open page; open the home page first if none is open."""
        if self._page is None:
            if not self._home:
                raise ToolError("no page is open; open an address first")
            try:
                self._page = await self._tab.open(self._home, seconds)
                self._visit(self._page)
            except ToolError as error:
                if seconds < self.call_seconds:  # The agent has used up its budget.
                    raise
                raise Broken(f"the page where the episode begins is gone: {error}") from error
        return self._page

    def _visit(self, page: Page) -> None:
        url = page.url[:MAX_URL]
        if self._visited[-1:] != [url] and len(self._visited) < MAX_VISITED:
            self._visited.append(url)

    def _text(self, page: Page) -> str:
        """Return the text for the agent: title, address, note, and a window of the page."""
        title = f"{page.title}\n" if page.title else ""
        note = f"\n({page.note})" if page.note else ""
        above = escape(f"{title}{page.url[:MAX_URL]}{note}")
        return f"{above}\n{view(page.lines, self._first, self.window_tokens)}"

    @property
    def _tab(self) -> BrowserSession:
        assert self._session is not None
        return self._session

    def _begin(self, session: BrowserSession, page: Page | None, first: int, visited: list[str]) -> None:
        self._session, self._page, self._first, self._visited = session, page, first, visited
        self._turn = asyncio.Lock()

    _home: str = ""
    _page: Page | None = None
    _first: int = 1
    """First line of the window."""
    _visited: list[str]
    _turn: asyncio.Lock


class WebBrowser(ReadingBrowser):
    """Opens pages, and acts on them."""

    @tool
    async def click(self, number: int) -> str:
        """Click on a numbered link, button, checkbox or other element.

        Args:
            number: the number in the brackets, 3 for [3:button Buy]
        """
        return await self._act(lambda tab, seconds: tab.click(number, seconds))

    @tool
    async def type(self, number: int, text: str) -> str:
        """Type a text into a numbered field, in place of what it holds.

        Args:
            number: the number in the brackets, 3 for [3:field Name]
            text: what the field shall hold
        """
        return await self._act(lambda tab, seconds: tab.type(number, text, seconds))

    @tool
    async def select(self, number: int, option: str) -> str:
        """Choose an option of a numbered select.

        Args:
            number: the number in the brackets, 3 for [3:select Size]
            option: the option's text as shown
        """
        return await self._act(lambda tab, seconds: tab.select(number, option, seconds))

    @tool
    async def submit(self, number: int) -> str:
        """Send the form that a numbered element belongs to.

        Args:
            number: the number of a field or button of the form
        """
        return await self._act(lambda tab, seconds: tab.submit(number, seconds))

    @tool
    async def press(self, key: str) -> str:
        """Press a key in the element that was clicked or typed into last.

        Args:
            key: its name, such as Enter
        """
        return await self._act(lambda tab, seconds: tab.press(key, seconds))
