"""MiniWoB++: small web pages with a task each, in a real browser.

A task:      MiniWoB click-button, page 4711: ...
An episode:  look() -> Click on the "no" button. / [1:button no] [2:field = ""] ...
             click(1) -> the page says that it is done

The pages come from the package `miniwob` and are served in this process. They need Chromium, because scripts make them.
A task's name and a number determine the page. The page itself judges; its verdict is read over the debugging protocol
after each action. An agent cannot change the verdict: it acts only by numbers, and the elements that show the reward or
start the task again are hidden. Success is a positive reward before any discount for time. Left out: pixels, dragging,
and time limits.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.envs import Task, ToolEnv, tool
from palaestra.envs.browser.browser import Page
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.opening import BROWSERS
from palaestra.envs.browser.site import Site, SiteRequest, SiteResponse, StaticSite
from palaestra.envs.core.backends import Where
from palaestra.envs.core.result import Done
from palaestra.envs.tools.browser import PageAction, WebBrowser
from palaestra.envs.tools.browser_actions import BrowserActions
from palaestra.episode import Attempt
from palaestra.errors import Broken, MissingExtra, ToolError, UsageError

HOST = "miniwob.test"
FINAL_SECONDS = 5.0
BEGIN = """
new Promise((resolve) => {
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #sync-task-cover { display: none !important }';
  document.head.append(style);
  Math.seedrandom(%d);
  core.EPISODE_MAX_TIME = 1e9;
  core.startEpisodeReal();
  (function wait() { WOB_TASK_READY ? resolve(true) : setTimeout(wait, 10); })();
})
"""
_TEXT_SOLVABLE = """
    ascending-numbers buy-ticket choose-date choose-date-easy choose-date-medium choose-date-nodelay choose-list
    click-button click-button-sequence click-checkboxes click-checkboxes-large click-checkboxes-transfer
    click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
    click-dialog-2 click-link click-option click-scroll-list click-tab click-tab-2 click-tab-2-easy click-tab-2-hard
    click-tab-2-medium click-test click-test-2 click-test-transfer click-widget copy-paste copy-paste-2 email-inbox
    email-inbox-delete email-inbox-forward email-inbox-important email-inbox-noscroll email-inbox-reply
    email-inbox-star-reply enter-date enter-password enter-text enter-text-2 enter-text-dynamic enter-time
    find-greatest find-word focus-text focus-text-2 form-sequence-2 generate-number grid-coordinate guess-number
    identify-shape login-user login-user-popup multi-orderings navigate-tree odd-or-even phone-book read-table
    read-table-2 scroll-text search-engine simple-algebra simple-arithmetic social-media terminal
    text-transform unicode-test use-autocomplete use-autocomplete-nodelay use-spinner
"""
TEXT_SOLVABLE = tuple(_TEXT_SOLVABLE.split())
"""Tasks that a script solves on every page that was tried, although it sees only the page's numbered text and acts only
by numbers. The others need pixels, dragging or a moment in time, or no such script was written."""
VERDICT = "[WOB_DONE_GLOBAL, Number(WOB_RAW_REWARD_GLOBAL)]"


class TaskSite(StaticSite):
    """Serves the page of one task, only once: a reload would draw another page, and other tasks may be easier."""

    def __init__(self, task: str) -> None:
        super().__init__(folder())
        self.page, self.opened = f"/miniwob/{task}.html", False

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the page of the task, or one of its resources."""
        if request.path.endswith("/") or request.path.endswith(".html"):
            if self.opened or request.path != self.page:
                return SiteResponse("<h1>404 Not Found</h1>", 404)
            self.opened = True
        page = super().respond(request)
        kind = page.type if "charset" in page.type or "text" not in page.type else f"{page.type}; charset=utf-8"
        return SiteResponse(page.body, page.status, kind, {"Cache-Control": "no-store"})


class TaskPage(WebBrowser):
    """Browser that shows the page of a task. The agent cannot leave it: `open` and `back` are not tools."""

    window_tokens = 2048

    def sites(self, task: Task) -> Mapping[str, Site]:
        """Return the site of the task."""
        self._seed = int(task.data["seed"])
        self._verdict = (False, 0.0)
        return {HOST: TaskSite(task.data["task"])}

    def home(self, task: Task) -> str:
        """Return the address of the page."""
        return f"http://{HOST}/miniwob/{task.data['task']}.html"

    async def open(self, url: str = "") -> str:
        """Read the page again. Agents cannot call this. Raise ToolError if `url` is given."""
        if url.strip():
            raise ToolError("other pages are not part of this task")
        return await self._act(lambda tab, seconds: tab.look(seconds))

    async def back(self) -> str:
        """Raise ToolError. Agents cannot call this."""
        raise ToolError("other pages are not part of this task")

    @tool
    async def look(self) -> str:
        """Read the page as it is now."""
        return await self.open()

    async def final(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Return the verdict of the page: whether it is done, and its reward."""
        if self._page is not None:
            with suppress(ToolError):  # A page that is gone has no verdict.
                await self._judge(FINAL_SECONDS)
        done, reward = self._verdict
        return {"done": done, "reward": reward}

    async def _act(self, action: PageAction, on_page: bool = True) -> str:
        async def judged(tab: Any, seconds: float) -> Page:
            if self._verdict[0]:
                raise ToolError("the task is over")
            page = await action(tab, seconds)
            await self._judge(seconds)
            return page

        text = await super()._act(judged, on_page)
        return Done(text, answer="the page is done") if self._verdict[0] else text

    async def _shown(self, seconds: float) -> Page:
        if self._page is None:
            tab = self._tab
            try:
                await tab.open(self._home, seconds)
                await self._chromium().evaluate(BEGIN % self._seed, seconds)
                self._page = await tab.look(seconds)
            except ToolError as error:  # The agent did not cause this.
                raise Broken(f"the page of the task did not begin: {error}") from error
        return self._page

    async def _judge(self, seconds: float) -> None:
        if not self._verdict[0]:
            done, reward = await self._chromium().evaluate(VERDICT, seconds)
            self._verdict = (bool(done), float(reward) if done else 0.0)

    def _chromium(self) -> ChromiumSession:
        assert isinstance(self._session, ChromiumSession)
        return self._session


class TaskActions(BrowserActions, TaskPage):
    """TaskPage with BrowserGym's action strings."""


class MiniWoB(ToolEnv):
    """Do what a small web page asks for."""

    system = (
        "You use a web page. Look at it first: it begins with what you have to do. What can be acted on has a number, "
        "[3:button Buy]. The episode ends when the page says so, for good or ill; then there is nothing to answer."
    )
    max_turns = 24

    def __init__(
        self,
        split: str = "train",
        task: str | Sequence[str] = "text",
        browser: Where = "chromium",
        actions: str = "tools",
        format: str | None = None,
    ) -> None:
        """`task` names one or several of the package's tasks, or "text": all that text can solve.

        `browser` is "chromium", or a mapping with its options. `actions` is tools (click, type, ...), or browsergym:
        one tool for its action strings.
        """
        super().__init__(split, format=format)
        if actions not in ("tools", "browsergym"):
            raise UsageError(f"actions is {actions!r}; expected 'tools' or 'browsergym'")
        name, _ = BROWSERS.read(browser)
        if name != "chromium":
            raise UsageError(f"browser is {name!r}, which runs no scripts; MiniWoB's pages need 'chromium'")
        self.names = chosen(task)
        self.toolkits = (partial(TaskPage if actions == "tools" else TaskActions, browser),)

    def task(self, rng: np.random.Generator) -> Task:
        name = self.names[rng.integers(len(self.names))]
        seed = int(rng.integers(2**31))
        prompt = f"MiniWoB {name}, page {seed}: look at the page, and do what it asks for."
        return Task(prompt, data={"task": name, "seed": seed})

    def reward(self, attempt: Attempt) -> float:
        return float(attempt.final["done"] and attempt.final["reward"] > 0)


@cache
def folder() -> Path:
    """Return the folder of the package's pages. The package is not imported, because it needs Selenium."""
    spec = find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise MissingExtra("miniwob", "miniwob", "palaestra/MiniWoB-v0")
    return Path(spec.origin).parent / "html"


@cache
def tasks() -> tuple[str, ...]:
    """Return the names of all tasks in the installed package."""
    return tuple(sorted(page.stem for page in (folder() / "miniwob").glob("*.html")))


def chosen(task: str | Sequence[str]) -> tuple[str, ...]:
    """Return the named tasks: one, several (a list, or with commas), or "text" for all that text can solve."""
    names = [str(name).strip() for name in (task.split(",") if isinstance(task, str) else task)]
    if names == ["text"]:
        return TEXT_SOLVABLE
    for name in names:
        if name not in tasks():
            close = get_close_matches(name, tasks(), n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "miniwob.tasks() lists them"
            raise UsageError(f"no task of MiniWoB is {name!r}; {hint}")
    if not names:
        raise UsageError("task names no task of MiniWoB; expected one, several, or 'text'")
    return tuple(dict.fromkeys(names))
