"""The interface of browsers: a browser opens sessions; a session is one agent's tab with separate cookies.

Both browsers show a page in the same numbered text. Not here: `envs.tools.browser` chooses which part of the page an
agent sees at a time, and `envs.browser.network` decides which addresses may be reached.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.envs.browser.site import Site


@dataclass(frozen=True, slots=True)
class Page:
    """Content of the tab as lines of text. Each element that an agent can act on has a number: [3:button Buy]."""

    url: str
    title: str
    lines: tuple[str, ...]
    """Lines in the common format, wrapped (`envs.browser.format`)."""
    elements: int = 0
    """Number of numbered elements; their numbers start at 1."""
    note: str = ""
    """Events in addition to the page: a refused download, a dialog that was accepted, a page that was cut."""


class BrowserSession(Protocol):
    """One agent's tab. Errors that an agent can cause (an old number, a dead host) are ToolErrors and keep the tab."""

    async def open(self, url: str, seconds: float = 30.0) -> Page:
        """Go to an address, which may be relative to the page."""

    async def click(self, number: int, seconds: float = 30.0) -> Page:
        """Follow a link, press a button, tick a box."""

    async def type(self, number: int, text: str, seconds: float = 30.0) -> Page:
        """Replace the content of a field by this text."""

    async def select(self, number: int, option: str, seconds: float = 30.0) -> Page:
        """Choose the option with this text in a list."""

    async def press(self, key: str, seconds: float = 30.0) -> Page:
        """Press a key, such as Enter, on the element with the focus."""

    async def submit(self, number: int, seconds: float = 30.0) -> Page:
        """Send the form that an element belongs to."""

    async def back(self, seconds: float = 30.0) -> Page:
        """Go back to the previous page."""

    async def scroll(self, down: bool = True, seconds: float = 30.0) -> Page:
        """Scroll the page; some pages then load more. A text browser always shows the whole page."""

    async def look(self, seconds: float = 30.0) -> Page:
        """Return the page as it is now."""

    def snapshot(self) -> Any:
        """Return a state for `Browser.restore`, or raise UsageError. The state is deep-copied with the episode."""

    def close(self) -> None:
        """Close the tab. It may be called twice, from any thread."""


class Browser(Protocol):
    """Opens sessions. Each process has one browser for all episodes."""

    waits: bool
    """True if actions wait for something outside; a text browser on sites in this process never does."""

    def session(self, sites: Mapping[str, Site]) -> BrowserSession:
        """Return a new tab. `sites` are served by this process, by host; other hosts need the browser's permission."""

    def restore(self, state: Any) -> BrowserSession:
        """Return a tab that continues from a snapshot."""

    def close(self) -> None:
        """Close the browser and all its sessions. It may be called twice."""
