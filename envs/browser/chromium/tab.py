"""One page of Chromium, over its debugging protocol: reading it, the mouse and the keyboard, waiting for it.

What reads and finds elements is page.js and acting.js, in a world apart from the page's scripts. Whatever a page does
(it hangs, crashes, never loads) is a ToolError; `Broken` comes where the browser itself is gone. Left out: what an
agent may ask (`session`), sites of this process (`serving`), processes and contexts (`engine`).
"""

import asyncio
import json
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from palaestra.envs.browser.format import escaped
from palaestra.errors import Broken, ToolError

T = TypeVar("T")
WORLD = "palaestra"
MAX_DIALOGS = 20
"""Dialogs of one action that are accepted; a page that opens more is closed."""
MAX_HOPS = 20
"""Pages of one action that lead on to another by themselves."""
LOAD_SECONDS = 5.0
"""For pictures and the like, once the page itself is there."""
CLOSE_SECONDS = 5.0
CLOSED_SECONDS = 0.2
"""In which the news comes that it was the whole browser that ended."""
NOTES = 20
GONE = ("Cannot find context", "context was destroyed", "navigated or closed", "No frame", "uniqueContextId")
"""What Chromium says when a document has made way for another one."""
STAYS = ("sameDocument", "historySameDocument")
LEADS = ("http", "https", "data", "blob", "about", "file")
"""Addresses for which another document comes; a mailto link leaves the page as it is."""


@cache
def script(name: str) -> str:
    """A .js file of this folder."""
    return files(__package__).joinpath(name).read_text("utf-8")


class Tab:
    """A page. Used on the browser's loop alone."""

    def __init__(self, page: Any, protocol: Any) -> None:
        """`protocol` is a session of the debugging protocol with that page."""
        self.page, self.send = page, protocol.send
        self.protocol = protocol
        self.notes: list[str] = []
        """What happened beside the page since the last action began."""
        self.dead = ""
        """Why it is of no use any more."""
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = False
        self._changed = asyncio.Event()
        self._frame = ""
        self._world: int | None = None
        self._leaving = self._loading = False
        """Another document was asked for and is not there yet; it, or this one, is not complete."""
        self._there: float | None = None
        """Since when the document is there, without its pictures."""
        self._started: set[str] = set()
        self._came: dict[str, set[str]] = {}
        """Since an address was gone to: the documents on their way, and for each that came those started before it."""
        self._unreachable = ""
        self._dialogs = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Once, before the first address."""
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
        wants = [self.send("Page.enable"), self.send("Page.addScriptToEvaluateOnNewDocument", world)]
        self._frame = (await asyncio.gather(*wants, self.send("Page.getFrameTree")))[2]["frameTree"]["frame"]["id"]

    # What happens to it.

    def note(self, text: str) -> None:
        """Tell the agent with the next page."""
        if len(self.notes) < NOTES:
            self.notes.append(text)

    def end(self, reason: str, broken: bool = False) -> None:
        """It is of no use any more; what is waited for ends at once. `broken` where no page can have done it."""
        if not self.dead:
            self.dead, self._broken = reason, broken
            if not self._over.done():
                self._over.set_result(None)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside; nobody waits for it."""

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
        """Do the work of an action; what the page or the browser did to it is told."""
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
            if "has been closed" in str(error):  # The news of an end may be behind its consequence.
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._over), 2 * CLOSED_SECONDS)
            self.refuse(error)
        finally:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # It is heard, if not told.

    def refuse(self, error: Exception | None = None) -> NoReturn:
        """Tell why nothing came of an action."""
        if self._broken:
            raise Broken(self.dead)
        if self.dead:
            raise ToolError(f"{self.dead}; open an address to go on")
        raise ToolError(f"the page cannot be used: {str(error).splitlines()[0][:300]}")

    async def evaluate(self, expression: str, page_world: bool = False) -> Any:
        """What an expression gives, as plain data: in our world, or in that of the page's scripts."""
        for _ in range(MAX_HOPS):
            wanted: dict[str, Any] = {"expression": expression, "awaitPromise": True, "returnByValue": True}
            try:
                if not page_world:
                    if self._world is None:
                        made = await self.send("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": WORLD})
                        self._world = made["executionContextId"]
                    wanted["contextId"] = self._world
                reply = await self.send("Runtime.evaluate", wanted)
            except Exception as error:
                if self.dead or not any(sign in str(error) for sign in GONE):
                    raise
                self._world = None
                continue
            if "exceptionDetails" in reply:
                found = reply["exceptionDetails"]
                said = found.get("exception", {}).get("description") or found.get("text", "")
                raise ToolError(f"the page cannot be read: {escaped(' '.join(said[:200].split()))}")
            return reply["result"].get("value")
        raise ToolError("the page keeps leaving for another one")

    async def act(self, name: str, *given: Any) -> dict[str, Any]:
        """An action of acting.js; a ToolError where it cannot be done."""
        words = json.dumps([name, *given])
        done: dict[str, Any] = await self.evaluate(f"palaestra.act(...{words})") or {}
        if "error" in done:
            raise ToolError(escaped(str(done["error"])))
        return done

    async def click(self, x: float, y: float) -> None:
        """The mouse goes there and clicks."""
        mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
        steps = ("mouseMoved", {**mouse, "button": "none"}), ("mousePressed", mouse), ("mouseReleased", mouse)
        # Sent together: Chromium takes them in their order.
        await asyncio.gather(*(self.send("Input.dispatchMouseEvent", {"type": kind, **at}) for kind, at in steps))

    async def write(self, text: str) -> None:
        """Text where the focus is, and the last key of it, for pages that wait for one."""
        key = {"key": text[-1]}
        await asyncio.gather(
            self.send("Input.insertText", {"text": text}),
            self.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **key}),
            self.send("Input.dispatchKeyEvent", {"type": "keyUp", **key}),
        )

    async def go(self, url: str) -> None:
        """Go to an address; its page comes with `view`."""
        for _ in range(MAX_HOPS):
            self._started, self._came = set(), {}
            self._leave()
            reply = await self.send("Page.navigate", {"url": url})
            failed, own = reply.get("errorText"), reply.get("loaderId")
            if failed or own is None:  # Without a loader it stays within the document.
                self._stay()
            if failed and not reply.get("isDownload"):
                raise ToolError(f"{url[:200]} could not be opened: {failed}")
            if failed or own is None or not await self._robbed(own):
                return

    async def _robbed(self, own: str) -> bool:
        """Whether the page before led on just when it was left: what it started comes after the document asked for."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_SECONDS):
                while own not in self._came:
                    self._changed.clear()
                    await self._changed.wait()
        return bool(self._came.get(own, set()) - {own})

    async def back(self) -> None:
        """The page before."""
        history = await self.send("Page.getNavigationHistory")
        before = history["currentIndex"] - 1
        if before < 0 or history["entries"][before]["url"] == "about:blank":
            raise ToolError("there is no page before this one")
        self._leave()
        await self.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][before]["id"]})

    async def view(self, until: float, only_numbers: bool = False, patience: float = 0.0) -> dict[str, Any]:
        """The page when it has come to rest, until that time of the loop; a change is waited for with `patience`."""
        words = f"{json.dumps(only_numbers)}, {1000 * patience}"
        for _ in range(MAX_HOPS):
            await self._loaded(until)
            seen: dict[str, Any] = await self.evaluate(f"palaestra.view({words})")
            if not self._leaving:
                if self._unreachable:
                    raise ToolError(f"{escaped(self._unreachable[:200])} could not be reached; open another address")
                return seen
        raise ToolError("the page keeps leaving for another one")

    async def _loaded(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while self._leaving or self._loading:
            left = (until if self._there is None else min(until, self._there + LOAD_SECONDS)) - loop.time()
            if left <= 0 and self._leaving:
                self._stay()
                with suppress(Exception):  # It is refused while one document takes another's place.
                    await self.send("Page.stopLoading")
                raise ToolError("the address did not answer in time")
            if left <= 0:
                self.note("the page is still loading")
                return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def rescue(self, seconds: float) -> bool:
        """After a deadline: whether the page answers, if need be once the script that keeps it is stopped."""
        for stop in (False, True):
            with suppress(Exception):
                async with asyncio.timeout(seconds / 2):
                    if stop:
                        await self.send("Runtime.terminateExecution")
                    await self.send("Runtime.evaluate", {"expression": "1"})
                    return True
        return False

    async def close(self) -> None:
        """End the page, also one that hangs."""
        try:
            await asyncio.wait_for(self.page.close(), CLOSE_SECONDS)
        except TimeoutError:
            await self.send("Page.crash")
