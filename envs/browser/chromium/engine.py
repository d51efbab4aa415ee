"""Chromium's processes: Playwright's driver, the browser, one context an episode, and a new browser now and then.

Driver and browser hang on pipes of ours, so they end with this process, even by SIGKILL. Used on one event loop. Left
out: what an episode does with its page (`session`).
"""

import asyncio
import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palaestra.envs.browser.chromium.isolation import FLAGS
from palaestra.errors import Broken, MissingExtra, UsageError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAUNCH_SECONDS = 60.0
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
PROFILES = "playwright_chromiumdev_profile-*"
"""Folders of Playwright's below the temporary one; its driver removes each with its browser."""


def find_chromium(named: str | None = None) -> str:
    """The path of a Chromium: the one that is named, here or by CHROMIUM, one on the path, or Playwright's own."""
    try:
        import playwright  # noqa: F401
    except ImportError as error:
        raise MissingExtra("playwright", "chromium", "the chromium browser") from error
    named = named or os.environ.get("CHROMIUM", "").strip()
    if named:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"{named!r} is no program; expected the path of a Chromium or Chrome")
        return found
    found = next(filter(None, map(shutil.which, NAMES)), None) or _playwrights_own()
    if found is None:
        raise MissingExtra(
            "a Chromium",
            "chromium",
            "the chromium browser",
            remedy="apt-get install chromium, or playwright install chromium, or name one with CHROMIUM=/path",
        )
    return found


def _playwrights_own() -> str | None:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or str(Path.home() / ".cache" / "ms-playwright")
    found = sorted(glob.glob(f"{folder}/chromium*/chrome-*linux*/*"))
    return next((path for path in found if Path(path).name in ("chrome", "chrome-headless-shell")), None)


@dataclass(eq=False)
class Running:
    """A browser that runs."""

    browser: Any
    protocol: Any
    """A session of the debugging protocol with the browser as a whole."""
    opened: int = 0
    contexts: dict[Any, Callable[[], None]] = field(default_factory=dict)
    """What lives in it, each with what is called when the browser ends by itself."""
    retired: bool = False
    """No episode begins in it any more; it is closed with its last one."""

    def ended(self) -> None:
        """Its process is gone."""
        self.retired = True
        for tell in list(self.contexts.values()):
            tell()


class Engine:
    """Opens contexts; starts and replaces browsers."""

    def __init__(self, executable: str, sandboxed: bool, max_contexts: int, max_episodes: int, max_bytes: int) -> None:
        self._executable, self._sandboxed = executable, sandboxed
        self._max_episodes, self._max_bytes = max_episodes, max_bytes
        self._free = asyncio.Semaphore(max_contexts)
        self._starting = asyncio.Lock()
        self._driver: Any = None
        self._current: Running | None = None

    async def open(self, options: Mapping[str, Any], ended: Callable[[], None]) -> tuple[Running, Any]:
        """A context for an episode, with the browser it is in. Waits where all are in use.

        `ended` is called should the browser end by itself.
        """
        await self._free.acquire()
        try:
            async with self._starting:
                running = await self._ready()
                running.opened += 1
            context = await running.browser.new_context(**options)
            running.contexts[context] = ended
            return running, context
        except BaseException as error:
            self._free.release()
            if isinstance(error, Broken | UsageError) or not isinstance(error, Exception):
                raise
            raise Broken(f"Chromium gave no context: {str(error).splitlines()[0][:300]}") from error

    async def leave(self, running: Running, context: Any) -> None:
        """Close a context; and its browser, if it waits for that."""
        if running.contexts.pop(context, None) is None:
            return
        try:
            with suppress(Exception):  # It may have died, and then all of it is gone.
                await context.close()
        finally:
            self._free.release()
        await self._close_retired(running)

    async def close(self) -> None:
        """End the driver, and with it every browser."""
        if self._current is not None:
            with suppress(Exception):
                await self._current.browser.close()
        if self._driver is not None:
            await self._driver.stop()
        self._current = self._driver = None

    async def _ready(self) -> Running:
        running = self._current
        if running is not None and not running.retired:
            if running.opened < self._max_episodes and await memory(running) < self._max_bytes:
                return running
            running.retired = True
            await self._close_retired(running)
        self._current = await self._start()
        return self._current

    async def _close_retired(self, running: Running) -> None:
        if running.retired and not running.contexts:
            with suppress(Exception):
                await running.browser.close()

    async def _start(self) -> Running:
        from playwright.async_api import async_playwright

        try:
            async with asyncio.timeout(LAUNCH_SECONDS):
                if self._driver is None:
                    sweep()
                    self._driver = await async_playwright().start()
                browser = await self._driver.chromium.launch(
                    executable_path=self._executable,
                    chromium_sandbox=self._sandboxed,
                    args=[*FLAGS, "--disable-dev-shm-usage"],
                    timeout=1000 * LAUNCH_SECONDS,
                )
                running = Running(browser, await browser.new_browser_cdp_session())
                browser.on("disconnected", lambda browser: running.ended())
                return running
        except Exception as error:
            said = " ".join(str(error).split())[:600] or f"no answer within {LAUNCH_SECONDS:g} s"
            if self._sandboxed and "sandbox" in said.lower():
                raise UsageError(
                    f"Chromium cannot use its own sandbox here: {said}; allow user namespaces, or pass sandboxed=False"
                ) from error
            raise Broken(f"Chromium did not start ({self._executable}): {said}") from error


async def memory(running: Running) -> int:
    """Bytes that a browser's processes have for themselves."""
    found = await running.protocol.send("SystemInfo.getProcessInfo")
    return sum(own_bytes(process["id"]) for process in found["processInfo"])


def own_bytes(pid: int) -> int:
    """What a process holds and does not share; 0 for one that is gone."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def sweep() -> None:
    """Remove profiles whose browser was killed together with its driver, so that nobody removed them."""
    for folder in Path(tempfile.gettempdir()).glob(PROFILES):
        with suppress(OSError, ValueError):
            host, _, pid = os.readlink(folder / "SingletonLock").rpartition("-")
            mine = folder.lstat().st_uid == os.getuid() and host == socket.gethostname()
            if mine and not Path(f"/proc/{int(pid)}").exists():
                shutil.rmtree(folder, ignore_errors=True)
