"""One page of Chromium, over its debugging protocol: reading it, running scripts in it, waiting for it.

page.js and acting.js read and find elements, in a world separate from the page's scripts. A fault of the page (it
hangs, crashes, never loads) is a ToolError; `Broken` means that the browser itself has ended. Not here: actions of an
agent (`session`), mouse and keyboard (`input`), sites of this process (`serving`), processes (`engine`).
"""

import asyncio
import json
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from palaestra.envs.browser.format import escape
from palaestra.errors import Broken, ToolError

T = TypeVar("T")
WORLD = "palaestra"
MAX_DIALOGS = 20
"""Maximum number of dialogs of one action that are accepted; a page that opens more is closed."""
MAX_HOPS = 20
"""Maximum number of pages of one action that lead on to another by themselves."""
LOAD_SECONDS = 5.0
"""Seconds to wait for pictures and the like, after the document is there."""
CLOSE_SECONDS = 5.0
CLOSED_SECONDS = 0.2
"""Seconds to wait for the event that the whole browser has ended."""
MAX_NOTES = 20
GONE = ("Cannot find context", "context was destroyed", "navigated or closed", "No frame", "uniqueContextId")
"""Messages of Chromium when another document has replaced this one."""
STAYS = ("sameDocument", "historySameDocument")
LEADS = ("http", "https", "data", "blob", "about", "file")
"""Schemes of addresses that load another document; a mailto link leaves the page as it is."""


@cache
def script(name: str) -> str:
    """Return the text of a .js file of this folder."""
    return files(__package__).joinpath(name).read_text("utf-8")


class Tab:
    """A page of Chromium. Use it only on the browser's loop."""

    def __init__(self, page: Any, protocol: Any) -> None:
        """`protocol` is a session of the debugging protocol with `page`."""
        self.page, self.send = page, protocol.send
        self.protocol = protocol
        self.notes: list[str] = []
        """Events beside the page since the last action began."""
        self.dead = ""
        """Reason why the page cannot be used any more, or ""."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = False
        self._changed = asyncio.Event()
        self._frame = ""
        self._world: int | None = None
        self._leaving = self._loading = False
        """`_leaving`: a requested document is not there yet. `_loading`: it, or this one, is not complete."""
        self._there: float | None = None
        """Time at which the document was there, without its pictures, on the clock of the loop; None before."""
        self._started: set[str] = set()
        self._came: dict[str, set[str]] = {}
        """Documents requested since the last `go`, and for each document that arrived, those requested before it."""
        self._unreachable = ""
        self._dialogs = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Set the page up. Call this once, before the first address."""
        on = self.protocol.on
        on("Page.frameRequestedNavigation", self._requested)
        on("Page.frameStartedNavigating", self._requested)
        on("Page.frameNavigated", self._navigated)
        on("Page.frameStoppedLoading", self._stopped)
        on("Page.navigatedWithinDocument", self._stopped)
        on("Page.domContentEventFired", self._is_there)
        on("Page.windowOpen", lambda event: self.note(f"a new window was not opened: {event['url'][:200]}"))
        self.page.on("crash", lambda page: self.end("the page crashed"))
        self.page.on("close", lambda page: self.begin(self._closed()))
        self.page.on("dialog", self._dialog)
        self.page.on("download", lambda download: self.note(f"a download was refused: {download.url[:200]}"))
        world = {"source": script("page.js") + script("acting.js"), "worldName": WORLD, "runImmediately": True}
        commands = [self.send("Page.enable"), self.send("Page.addScriptToEvaluateOnNewDocument", world)]
        self._frame = (await asyncio.gather(*commands, self.send("Page.getFrameTree")))[2]["frameTree"]["frame"]["id"]

    # What happens to it.

    def note(self, text: str) -> None:
        """Add a note, which the agent reads with the next page."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def end(self, reason: str, broken: bool = False) -> None:
        """Mark the page as unusable, and end all waits at once. `broken` means that the page cannot be the cause."""
        if not self.dead:
            self.dead, self._broken = reason, broken
            if not self._over.done():
                self._over.set_result(None)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start work in the background. Its errors are ignored."""

        async def quietly() -> None:
            with suppress(Exception):  # The page may be gone meanwhile.
                await work

        task = asyncio.create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _requested(self, event: Mapping[str, Any]) -> None:
        here = event["frameId"] == self._frame and event.get("disposition", "currentTab") == "currentTab"
        if here and event.get("navigationType") not in STAYS and urlsplit(event["url"]).scheme in LEADS:
            self._started.update({event["loaderId"]} if "loaderId" in event else ())
            self._leave()

    def _leave(self) -> None:
        self._leaving = self._loading = True
        self._there = None

    def _stay(self) -> None:
        self._leaving = self._loading = False
        self._changed.set()

    def _navigated(self, event: Mapping[str, Any]) -> None:
        frame = event["frame"]
        if "parentId" not in frame:
            self._frame, self._leaving, self._world = frame["id"], False, None
            self._unreachable = frame.get("unreachableUrl", "")
            self._came[frame["loaderId"]] = self._started.copy()
            self._changed.set()

    def _is_there(self, event: Mapping[str, Any]) -> None:
        self._there = asyncio.get_running_loop().time()
        self._changed.set()

    def _stopped(self, event: Mapping[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._stay()

    async def _closed(self) -> None:
        await asyncio.sleep(CLOSED_SECONDS)
        self.end("the page was closed")

    def _dialog(self, dialog: Any) -> None:
        self._dialogs += 1
        if dialog.type != "beforeunload":
            self.note(f"the page said: {' '.join(dialog.message.split())[:300]!r} (accepted)")
        if self._dialogs > MAX_DIALOGS:
            self.end(f"the page opened more than {MAX_DIALOGS} dialogs and was closed")
        else:
            self.begin(dialog.accept())

    # Asking it.

    async def run(self, work: Awaitable[T]) -> T:
        """Do the work of an action. If the page or the browser ends meanwhile, raise the reason."""
        self._dialogs = 0
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._over), return_when=asyncio.FIRST_COMPLETED)
            if self.dead:
                self.refuse()
            return task.result()
        except (ToolError, Broken):
            raise
        except Exception as error:
            if "has been closed" in str(error):  # The event of the end may arrive after its consequence.
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._over), 2 * CLOSED_SECONDS)
            self.refuse(error)
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # Retrieve the exception, so that asyncio does not log it.

    def refuse(self, error: Exception | None = None) -> NoReturn:
        """Raise the reason why an action failed."""
        if self._broken:
            raise Broken(self.dead)
        if self.dead:
            raise ToolError(f"{self.dead}; open an address to go on")
        raise ToolError(f"the page cannot be used: {str(error).splitlines()[0][:300]}")

    async def evaluate(self, expression: str, page_world: bool = False) -> Any:
        """Evaluate an expression in our world, or (`page_world`) in that of the page's scripts; return plain data."""
        for _ in range(MAX_HOPS):
            parameters: dict[str, Any] = {"expression": expression, "awaitPromise": True, "returnByValue": True}
            try:
                if not page_world:
                    if self._world is None:
                        data = await self.send("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": WORLD})
                        self._world = data["executionContextId"]
                    parameters["contextId"] = self._world
                reply = await self.send("Runtime.evaluate", parameters)
            except Exception as error:
                if self.dead or not any(sign in str(error) for sign in GONE):
                    raise
                self._world = None
                continue
            if "exceptionDetails" in reply:
                details = reply["exceptionDetails"]
                message = details.get("exception", {}).get("description") or details.get("text", "")
                raise ToolError(f"the page cannot be read: {escape(' '.join(message[:200].split()))}")
            return reply["result"].get("value")
        raise ToolError("the page keeps leaving for another one")

    async def act(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Run an action of acting.js; raise a ToolError if it fails."""
        outcome: dict[str, Any] = await self.evaluate(f"palaestra.act(...{json.dumps([name, *arguments])})") or {}
        if "error" in outcome:
            raise ToolError(escape(str(outcome["error"])))
        return outcome

    async def go(self, url: str) -> None:
        """Go to an address; `view` waits for its page."""
        for _ in range(MAX_HOPS):
            self._started, self._came = set(), {}
            self._leave()
            reply = await self.send("Page.navigate", {"url": url})
            failed, loader = reply.get("errorText"), reply.get("loaderId")
            if failed or loader is None:  # Without a loader it stays within the document.
                self._stay()
            if failed and not reply.get("isDownload"):
                raise ToolError(f"{url[:200]} could not be opened: {failed}")
            if failed or loader is None or not await self._robbed(loader):
                return

    async def _robbed(self, loader: str) -> bool:
        """Return whether the previous page, while being left, opened another document after the requested one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_SECONDS):
                while loader not in self._came:
                    self._changed.clear()
                    await self._changed.wait()
        return bool(self._came.get(loader, set()) - {loader})

    async def back(self) -> None:
        """Go back to the previous page."""
        history = await self.send("Page.getNavigationHistory")
        before = history["currentIndex"] - 1
        if before < 0 or history["entries"][before]["url"] == "about:blank":
            raise ToolError("there is no page before this one")
        self._leave()
        await self.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][before]["id"]})

    async def view(self, until: float, only_numbers: bool = False, patience: float = 0.0) -> dict[str, Any]:
        """Return the page when it is complete, or at the loop time `until`. Give it `patience` seconds to change."""
        words = f"{json.dumps(only_numbers)}, {1000 * patience}"
        for _ in range(MAX_HOPS):
            await self._loaded(until)
            view_data: dict[str, Any] = await self.evaluate(f"palaestra.view({words})")
            if not self._leaving:
                if self._unreachable:
                    raise ToolError(f"{escape(self._unreachable[:200])} could not be reached; open another address")
                return view_data
        raise ToolError("the page keeps leaving for another one")

    async def _loaded(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while self._leaving or self._loading:
            remaining_seconds = (until if self._there is None else min(until, self._there + LOAD_SECONDS)) - loop.time()
            if remaining_seconds <= 0 and self._leaving:
                self._stay()
                with suppress(Exception):  # Chromium refuses it while one document replaces another.
                    await self.send("Page.stopLoading")
                raise ToolError("the address did not answer in time")
            if remaining_seconds <= 0:
                self.note("the page is still loading")
                return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), remaining_seconds)

    async def rescue(self, seconds: float) -> bool:
        """After a timeout, stop the page's script if the page does not answer. Return whether it answers in the end."""
        for stop in (False, True):
            with suppress(Exception):
                async with asyncio.timeout(seconds / 2):
                    if stop:
                        await self.send("Runtime.terminateExecution")
                    await self.send("Runtime.evaluate", {"expression": "1"})
                    return True
        return False

    async def close(self) -> None:
        """Close the page, even if it hangs."""
        try:
            await asyncio.wait_for(self.page.close(), CLOSE_SECONDS)
        except TimeoutError:
            await self.send("Page.crash")
