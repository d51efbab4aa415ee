"""The text browser: pages without JavaScript, thousands of sessions in one process.

Without `allow` it reaches only the sites of its sessions, and never waits. A session's state is small plain data
(address, typed values, cookies, history), so an episode can be branched. Not supported: scripts, styles, file uploads.
"""

import asyncio
import weakref
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urldefrag, urljoin

from palaestra.envs.browser.browser import BrowserSession, Page
from palaestra.envs.browser.format import escape
from palaestra.envs.browser.network.allow import allow_list
from palaestra.envs.browser.network.transport import checked_transport
from palaestra.envs.browser.site import Site
from palaestra.envs.browser.text import forms
from palaestra.envs.browser.text.cookies import Jar
from palaestra.envs.browser.text.document import ParsedPage, html_parser
from palaestra.envs.browser.text.elements import BUTTONS, CHECKABLE, Element, FieldValue
from palaestra.envs.browser.text.fetching import SHOWN, Client, Download, Loaded, load
from palaestra.errors import ToolError, UsageError

MAX_HISTORY = 30
MAX_TYPED = 100_000


class TextBrowser:
    """Opens sessions. Each process has one text browser."""

    def __init__(self, allow: str | Iterable[str] = (), max_bytes: int = 4_000_000) -> None:
        """`allow`: hosts that may be reached (`envs.browser.network`). `max_bytes`: maximum bytes to read of a page."""
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
            raise UsageError(f"max_bytes is {max_bytes!r}; expected a whole number above 0")
        html_parser()
        self._allow = allow_list(allow)
        self._transports: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.client = Client(self._transport if self._allow.entries else None, max_bytes)
        self.waits = self.client.waits

    def session(self, sites: Mapping[str, Site]) -> "TextSession":
        """Return a new tab."""
        return TextSession(self.client, sites)

    def restore(self, state: Any) -> "TextSession":
        """Return a tab that continues from a snapshot."""
        session = TextSession(self.client, {})
        session.state = state
        return session

    def close(self) -> None:
        """Close the connections of the browser."""
        for loop, transport in list(self._transports.items()):
            if loop.is_running():  # It runs on another thread, except in tests.
                asyncio.run_coroutine_threadsafe(transport.aclose(), loop)
        self._transports.clear()

    def _transport(self) -> Any:
        """Return the transport of the running loop, because a connection belongs to the loop that opened it."""
        loop = asyncio.get_running_loop()
        transport = self._transports.get(loop)
        if transport is None:
            transport = self._transports[loop] = checked_transport(self._allow)
        return transport


class BrowserState:
    """State of a session. It is deep-copied with the episode."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites, self.jar = sites, Jar()
        self.url, self.method = "", "GET"
        self.document: ParsedPage | None = None
        self.values: dict[int, FieldValue] = {}
        """Changed values of controls, by their index in the document's elements."""
        self.focus = -1
        self.history: list[tuple[str, ParsedPage | None]] = []
        """Previous addresses. The answer to a POST keeps its document, because the form is not sent again."""


class TextSession(BrowserSession):
    """One agent's tab."""

    def __init__(self, client: Client, sites: Mapping[str, Site]) -> None:
        self.client, self.state = client, BrowserState(sites)

    async def open(self, url: str, seconds: float = 30.0) -> Page:
        return await self._go(self._absolute(url), "GET", b"", seconds)

    async def click(self, number: int, seconds: float = 30.0) -> Page:
        """Follow a link, press a button, tick a box; a field gets the focus."""
        index, element = self._element(number)
        self.state.focus = index
        if element.kind == "link":
            return await self._follow(element.attributes["href"], seconds)
        if element.kind in BUTTONS:
            return await self._press_button(element, seconds)
        if element.kind in CHECKABLE:
            self._tick(index, element)
        return self._page()

    async def type(self, number: int, text: str, seconds: float = 30.0) -> Page:
        index, element = self._element(number)
        if not isinstance(element.value, str) or element.kind in ("link", "file", *BUTTONS):
            raise ToolError(f"[{number}] is a {element.shown_kind}; text is typed into a field")
        if "readonly" in element.attributes:
            raise ToolError(f"[{number}] can only be read")
        max_length = element.attributes.get("maxlength", "")
        limit = min(int(max_length[:6]), MAX_TYPED) if max_length.isascii() and max_length.isdigit() else MAX_TYPED
        if element.tag == "input":
            text = text.replace("\r", "").replace("\n", "")
        self.state.focus = index
        return self._hold({index: text[:limit]})

    async def select(self, number: int, option: str, seconds: float = 30.0) -> Page:
        """Choose an option by its text; in a list of several choices, toggle it."""
        index, element = self._element(number)
        if element.kind != "select" or not isinstance(element.value, tuple):
            raise ToolError(f"[{number}] is a {element.shown_kind}; options are those of a select")
        option_text = " ".join(option.split()).casefold()
        names = [text.casefold() for text, _, _ in element.options]
        by_text = [n for n, name in enumerate(names) if name == option_text]
        by_value = [n for n, (_, value, _) in enumerate(element.options) if value == option]
        if not by_text + by_value:
            close = get_close_matches(option_text, names, n=3)
            suggestions = [text for text, _, _ in element.options if text.casefold() in close or not close][:5]
            raise ToolError(f"[{number}] has no option {option[:80]!r}; it has {', '.join(map(escape, suggestions))}")
        chosen = (by_text + by_value)[0]
        if element.options[chosen][2]:
            raise ToolError(f"that option of [{number}] is disabled")
        self.state.focus = index
        if "multiple" in element.attributes:
            return self._hold({index: tuple(sorted({chosen} ^ set(element.value)))})
        return self._hold({index: (chosen,)})

    async def press(self, key: str, seconds: float = 30.0) -> Page:
        """Press Enter or Space on the element with the focus."""
        document = self._document()
        if key not in ("Enter", "Space", " "):
            raise ToolError(f"the key {key[:20]!r} does nothing here; Enter and Space do")
        if not 0 <= self.state.focus < len(document.elements):
            raise ToolError("nothing has the focus; click on something or type into a field first")
        element = document.elements[self.state.focus]
        if element.kind in ("link", *BUTTONS) or (key != "Enter" and element.kind in CHECKABLE):
            return await self.click(element.number, seconds)
        if isinstance(element.value, str) and (key != "Enter" or element.tag == "textarea"):
            return self._hold({self.state.focus: element.value + ("\n" if key == "Enter" else " ")})
        return await self.submit(element.number, seconds) if element.tag == "input" else self._page()

    async def submit(self, number: int, seconds: float = 30.0) -> Page:
        """Send the form of an element: with this element if it is a submit button, else with the first button."""
        document = self._document()
        _, element = self._element(number)
        form = forms.form_of(document, element)
        if form < 0:
            raise ToolError(f"[{number}] is in no form")
        button = element if element.kind in ("submit", "image") else forms.default_button(document, form)
        return await self._send(form, button, seconds)

    async def back(self, seconds: float = 30.0) -> Page:
        """Go back to the previous page. It is requested again, unless it was the answer to a form."""
        state = self.state
        if not state.history:
            raise ToolError("there is no page before this one")
        url, document = state.history[-1]
        if document is None:
            page = await self._go(url, "GET", b"", seconds, remember=False)
        else:
            self._show(Loaded(url, document, "POST"))
            page = self._page()
        state.history.pop()
        return page

    async def scroll(self, down: bool = True, seconds: float = 30.0) -> Page:
        return self._page()

    async def look(self, seconds: float = 30.0) -> Page:
        return self._page()

    def snapshot(self) -> BrowserState:
        """Return the state object itself, which the session goes on changing; the caller must copy it."""
        return self.state

    def close(self) -> None:
        """Do nothing, because a session holds no resources."""

    # What actions share.

    def _document(self) -> ParsedPage:
        if self.state.document is None:
            raise ToolError("no page is open; open an address first")
        return self.state.document

    def _element(self, number: int) -> tuple[int, Element]:
        """Return the index in the document's elements, and the element, for a number that the agent sees."""
        document = self._document()
        if not 1 <= number <= len(document.numbered):
            there = f"its numbers are 1 to {len(document.numbered)}" if document.numbered else "it has no numbers"
            raise ToolError(f"there is no [{number}] on this page; {there}")
        index = document.numbered[number - 1]
        element = document.elements[index]
        if element.disabled:
            raise ToolError(f"[{number}] is disabled")
        return index, element

    def _absolute(self, url: str) -> str:
        """Return the full address for an agent's text: a full address, one without a scheme, or a relative one."""
        url, state = url.strip(), self.state
        if "://" in url[:12]:
            return url
        if url.partition("/")[0].lower() in state.sites:
            return f"http://{url}"
        if state.document is not None:
            return self._join(url)
        if url.startswith(("/", "?", "#", ".")):
            raise ToolError(f"no page is open; open a full address before {url[:SHOWN]!r}")
        return f"https://{url}"

    def _join(self, url: str) -> str:
        """Return the full address of a link on the page."""
        base = self._document().base
        try:
            return urljoin(urljoin(self.state.url, base) if base else self.state.url, url.strip())
        except ValueError:
            raise ToolError(f"{url[:SHOWN]!r} is no address") from None

    async def _follow(self, href: str, seconds: float) -> Page:
        url = self._join(href)
        if "#" in href and urldefrag(url)[0] == urldefrag(self.state.url)[0]:
            self.state.url = url  # An anchor on this page.
            return self._page()
        return await self._go(url, "GET", b"", seconds)

    async def _press_button(self, element: Element, seconds: float) -> Page:
        form = forms.form_of(self._document(), element)
        if element.kind == "reset" and form >= 0:
            elements, values = self._document().elements, self.state.values
            others = [n for n in values if forms.form_of(self._document(), elements[n]) != form]
            self.state.values = {n: values[n] for n in others}
            return self._hold({})
        if element.kind not in ("submit", "image") or form < 0:
            return self._page("nothing happens: without scripts it does nothing")
        return await self._send(form, element, seconds)

    async def _send(self, form: int, button: Element | None, seconds: float) -> Page:
        document = self._document()
        lacking = None if button and "formnovalidate" in button.attributes else forms.missing(document, form)
        if lacking is not None:
            return self._page(f"[{lacking.number}] {forms.REQUIRED}")
        try:
            action, method, body = forms.request_of(document, form, button)
        except ValueError as error:
            raise ToolError(f"the form leads to no address: {error}") from None
        url = self._join(action) if method == "GET" or action else self.state.url
        return await self._go(url, method, body, seconds)

    def _tick(self, index: int, element: Element) -> None:
        """Check or uncheck a box; checking a radio button unchecks the others of its name."""
        document, name = self._document(), element.attributes.get("name")
        changed: dict[int, FieldValue] = {}
        if element.kind == "radio" and name:
            form = forms.form_of(document, element)
            for at, other in enumerate(document.elements):
                if (other.kind, other.attributes.get("name"), forms.form_of(document, other)) == ("radio", name, form):
                    changed[at] = False
        self._hold({**changed, index: element.kind == "radio" or not element.value})

    def _hold(self, changed: Mapping[int, FieldValue]) -> Page:
        """Set the values of some controls, and return the page."""
        self.state.values |= changed
        self.state.document = self._document().holding(self.state.values)
        return self._page()

    async def _go(self, url: str, method: str, body: bytes, seconds: float, remember: bool = True) -> Page:
        state = self.state
        try:
            loaded = await load(self.client, state.sites, state.jar, url, method, body, seconds)
        except Download as download:
            return self._page(str(download))
        if remember and state.document is not None:
            state.history.append((state.url, state.document if state.method == "POST" else None))
            del state.history[:-MAX_HISTORY]
        self._show(loaded)
        return self._page(loaded.note)

    def _show(self, loaded: Loaded) -> None:
        state = self.state
        state.url, state.document, state.method = loaded.url, loaded.document, loaded.method
        state.values, state.focus = {}, -1

    def _page(self, note: str = "") -> Page:
        document = self.state.document
        if document is None:
            return Page("", "", (), note=note)
        refresh = "" if document.refresh is None else "leads on to {1} after {0:g} s".format(*document.refresh)
        note = "; ".join(filter(None, (note, escape(refresh[:SHOWN]), document.note)))
        return Page(self.state.url, document.title, document.lines, len(document.numbered), note)
