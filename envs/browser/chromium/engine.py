"""Chromium's processes: Playwright's driver, the browser, one context for each episode; old browsers are replaced.

Driver and browser hold pipes to this process, so they end with it, even after SIGKILL. All functions run on one event
loop. Not here: what an episode does with its page (`session`).
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
"""Playwright's folders in the temporary folder; its driver removes each with its browser."""


def find_chromium(executable: str | None = None) -> str:
    """Return the path of a Chromium: `executable`, or else the variable CHROMIUM, one on PATH, or Playwright's own."""
    try:
        import playwright  # noqa: F401
    except ImportError as error:
        raise MissingExtra("playwright", "chromium", "the chromium browser") from error
    program = executable or os.environ.get("CHROMIUM", "").strip()
    if program:
        path = shutil.which(program)
        if path is None:
            raise UsageError(f"{program!r} is no program; expected the path of a Chromium or Chrome")
        return path
    path = next(filter(None, map(shutil.which, NAMES)), None) or _playwright_chromium()
    if path is None:
        raise MissingExtra(
            "a Chromium",
            "chromium",
            "the chromium browser",
            remedy="apt-get install chromium, or playwright install chromium, or name one with CHROMIUM=/path",
        )
    return path


def _playwright_chromium() -> str | None:
    folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or str(Path.home() / ".cache" / "ms-playwright")
    paths = sorted(glob.glob(f"{folder}/chromium*/chrome-*linux*/*"))
    return next((path for path in paths if Path(path).name in ("chrome", "chrome-headless-shell")), None)


@dataclass(eq=False)
class Running:
    """A running Chromium with its open contexts."""

    browser: Any
    protocol: Any
    """A session of the debugging protocol with the whole browser."""
    opened: int = 0
    contexts: dict[Any, Callable[[], None]] = field(default_factory=dict)
    """Open contexts, each with a function to call when the browser ends by itself."""
    retired: bool = False
    """True when no more episodes start in it; it is closed with its last one."""

    def ended(self) -> None:
        """Mark the browser as retired, because its process has ended, and notify its contexts."""
        self.retired = True
        for tell in list(self.contexts.values()):
            tell()


class ChromiumProcesses:
    """Opens contexts; starts and replaces browsers."""

    def __init__(self, executable: str, sandboxed: bool, max_contexts: int, max_episodes: int, max_bytes: int) -> None:
        self._executable, self._sandboxed = executable, sandboxed
        self._max_episodes, self._max_bytes = max_episodes, max_bytes
        self._free = asyncio.Semaphore(max_contexts)
        self._starting = asyncio.Lock()
        self._driver: Any = None
        self._current: Running | None = None

    async def open(self, options: Mapping[str, Any], ended: Callable[[], None]) -> tuple[Running, Any]:
        """Return the browser and a new context for an episode. Wait while `max_contexts` contexts are open.

        `ended` is called if the browser ends by itself.
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
        """Close a context. Close its browser too if that is retired and has no other context."""
        if running.contexts.pop(context, None) is None:
            return
        try:
            with suppress(Exception):  # The browser may have died, and the context with it.
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
            text = " ".join(str(error).split())[:600] or f"no answer within {LAUNCH_SECONDS:g} s"
            if self._sandboxed and "sandbox" in text.lower():
                raise UsageError(
                    f"Chromium cannot use its own sandbox here: {text}; allow user namespaces, or pass sandboxed=False"
                ) from error
            raise Broken(f"Chromium did not start ({self._executable}): {text}") from error


async def memory(running: Running) -> int:
    """Return the number of bytes that the processes of a browser use and do not share."""
    reply = await running.protocol.send("SystemInfo.getProcessInfo")
    return sum(private_bytes(process["id"]) for process in reply["processInfo"])


def private_bytes(pid: int) -> int:
    """Return the number of bytes that a process uses and does not share; 0 if the process has ended."""
    try:
        _, resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def sweep() -> None:
    """Remove the profile folders of browsers that were killed together with their driver."""
    for folder in Path(tempfile.gettempdir()).glob(PROFILES):
        with suppress(OSError, ValueError):
            host, _, pid = os.readlink(folder / "SingletonLock").rpartition("-")
            is_ours = folder.lstat().st_uid == os.getuid() and host == socket.gethostname()
            if is_ours and not Path(f"/proc/{int(pid)}").exists():
                shutil.rmtree(folder, ignore_errors=True)
