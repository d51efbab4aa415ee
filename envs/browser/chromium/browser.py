"""`ChromiumBrowser`: Chromium with JavaScript, with the same interface as the text browser; one in each process.

It runs on an event loop in a separate thread, so that any loop and any thread may use its sessions. It reaches the
hosts of its allow-list through a proxy of each session; with no allow-list, it reaches only sites of this process. Not
supported: snapshots.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from weakref import WeakSet

from palaestra.endpoint.background import BackgroundLoop
from palaestra.envs.browser.chromium.engine import ChromiumProcesses, find_chromium
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.network.allow import allow_list
from palaestra.envs.browser.site import Site
from palaestra.errors import UsageError

VIEWS = ("numbered", "accessibility")


class ChromiumBrowser:
    """Opens sessions, each in a separate context: sessions share no cookie, storage or cache."""

    waits = True

    def __init__(
        self,
        allow: str | Iterable[str] = (),
        view: str = "numbered",
        executable: str | None = None,
        sandboxed: bool | None = None,
        max_contexts: int = 32,
        max_episodes: int = 200,
        max_memory_mb: int = 4096,
    ) -> None:
        """Chromium starts when its first session takes its first action.

        `allow` lists the hosts that may be reached (`envs.browser.network.allow`). `view` is "numbered", or
        "accessibility": the tree that screen readers get, with the numbered text below it. If `sandboxed`, Chromium
        puts its pages into its own sandbox; None means True, except as root, where Chromium cannot. At most
        `max_contexts` episodes run at a time, others wait. A new Chromium takes the next episodes after `max_episodes`,
        or when the old one uses `max_memory_mb` of memory.
        """
        if view not in VIEWS:
            raise UsageError(f"view is {view!r}; expected {' or '.join(map(repr, VIEWS))}")
        bounds = {"max_contexts": max_contexts, "max_episodes": max_episodes, "max_memory_mb": max_memory_mb}
        for name, value in bounds.items():
            if value < 1:
                raise UsageError(f"{name} is {value}; expected at least 1")
        self._allow, self._view = allow_list(allow), view
        self._loop = BackgroundLoop("chromium")
        self._sessions: WeakSet[ChromiumSession] = WeakSet()
        sandboxed = os.geteuid() != 0 if sandboxed is None else sandboxed
        self._engine = ChromiumProcesses(
            find_chromium(executable), sandboxed, max_contexts, max_episodes, max_memory_mb * 2**20
        )

    def session(self, sites: Mapping[str, Site]) -> ChromiumSession:
        """Return a new tab. Its context opens when the tab takes its first action."""
        session = ChromiumSession(self._loop, self._engine, self._allow, sites, self._view)
        self._sessions.add(session)
        return session

    def restore(self, state: Any) -> NoReturn:
        """Raise UsageError, because Chromium has no snapshots."""
        raise UsageError("a page in Chromium has no snapshot; use the text browser (browser='text') for branches")

    def close(self) -> None:
        """End Chromium and all sessions. It may be called twice."""
        self._loop.close(self._end())

    async def _end(self) -> None:
        for session in list(self._sessions):
            await session.unplug()
        await self._engine.close()
