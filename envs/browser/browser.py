"""The port of browsing: a browser opens sessions, a session is one agent's tab with cookies of its own.

Both browsers show a page in the same numbered text. Left out: which part of it an agent sees at a time
(`envs.tools.browser`), and which addresses may be reached (`envs.browser.network`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.envs.browser.site import Site


@dataclass(frozen=True, slots=True)
class Page:
    """What stands in the tab: text in lines, where what can be acted on carries its number: [3:button Buy]."""

    url: str
    title: str
    lines: tuple[str, ...]
    """In the common format, wrapped (`envs.browser.format`)."""
    elements: int = 0
    """How many numbers there are, from 1 on."""
    note: str = ""
    """What happened beside the page: a refused download, a dialog that was accepted, a page that was cut."""


class BrowserSession(Protocol):
    """One agent's tab. What an agent can cause (a number that is gone, a dead host) is a ToolError; it lives on."""

    async def open(self, url: str, seconds: float = 30.0) -> Page:
        """Go to an address, or to one relative to the page."""

    async def click(self, number: int, seconds: float = 30.0) -> Page:
        """Follow a link, press a button, tick a box."""

    async def type(self, number: int, text: str, seconds: float = 30.0) -> Page:
        """Put a text into a field, in place of what it holds."""

    async def select(self, number: int, option: str, seconds: float = 30.0) -> Page:
        """Choose an option of a list by its text."""

    async def press(self, key: str, seconds: float = 30.0) -> Page:
        """Press a key, such as Enter, where the focus is."""

    async def submit(self, number: int, seconds: float = 30.0) -> Page:
        """Send the form that an element belongs to."""

    async def back(self, seconds: float = 30.0) -> Page:
        """The page before."""

    async def scroll(self, down: bool = True, seconds: float = 30.0) -> Page:
        """Scroll the page itself, for those that load more; a text browser shows all of a page as it is."""

    async def look(self, seconds: float = 30.0) -> Page:
        """The page as it is now."""

    def snapshot(self) -> Any:
        """What this tab can begin again from (`Browser.restore`): copied deeply with the episode. Or a UsageError."""

    def close(self) -> None:
        """Leave. May come twice, from any thread."""


class Browser(Protocol):
    """Opens sessions. One a process, shared by all episodes."""

    waits: bool
    """Whether actions wait for something outside; a text browser on sites in this process never does."""

    def session(self, sites: Mapping[str, Site]) -> BrowserSession:
        """A new tab. `sites` are served in this process, by host; other hosts are reached as far as it allows."""

    def restore(self, state: Any) -> BrowserSession:
        """A tab that goes on from a snapshot."""

    def close(self) -> None:
        """Close it and all its sessions. May come twice."""
