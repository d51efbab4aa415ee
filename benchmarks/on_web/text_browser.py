"""Measure the text browser: actions per second, memory of a session, and the time to convert a page to text.

Actions go through the tools of `WebBrowser` as an episode calls them, in one process on one thread, on sites in this
process. `pages that others have seen` is a site of SITE_PAGES pages of 4 KB that sessions visit at random, like the
members of a group; on `pages that nobody has seen` each answer differs, so that nothing is cached. All times are CPU
time. Left out: servers, which have their own time.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from peers.findings import target

from palaestra import Task
from palaestra.envs.browser.site import SiteRequest, SiteResponse
from palaestra.envs.browser.text import document
from palaestra.envs.core.calls import _run_without_waiting
from palaestra.envs.tools.browser import WebBrowser

SITE_PAGES = 100
PAGE_BYTES, LARGE_BYTES = 4_000, 44_000
ACTIONS_A_SECOND = 3_000
SESSION_BYTES = 2**20
LARGE_MS = 2.5
_TEXT = "the of and a to in is that page price order shop item note about which their water small first"
WORDS = _TEXT.split()


def page(size: int, seed: int, extra: str = "") -> str:
    """Return a page of documentation of about `size` bytes: prose with links and code, lists, a table, a form."""
    rng = random.Random(seed)

    def prose(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words))

    form = '<form method="post"><label for="q">Find</label> <input id="q" name="q"><button>Go</button></form>'
    parts = [f"<!doctype html><html><head><title>Page {seed}</title></head><body><h1>Page {seed}</h1>{extra}{form}"]
    length = len(parts[0])
    while length < size - 900:
        other = rng.randrange(SITE_PAGES)
        part = (
            f'<section id="s{length}"><h2 class="title">{prose(4)}</h2><p class="text">{prose(30)} '
            f'<a class="reference internal" href="/{other}">{prose(2)}</a> {prose(25)} <code class="docutils '
            f'literal"><span class="pre">{prose(1)}</span></code> {prose(20)}.</p><ul class="simple">'
            f'<li>{prose(6)}</li><li><a href="/{rng.randrange(SITE_PAGES)}">{prose(3)}</a></li></ul></section>'
        )
        parts.append(part)
        length += len(part)
    return "".join([*parts, "</body></html>"])


class Shared:
    """Site whose pages never change."""

    pages = [page(PAGE_BYTES, seed) for seed in range(SITE_PAGES)]  # noqa: RUF012

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return the page with the requested number."""
        return SiteResponse(self.pages[int(request.path[1:]) if request.path[1:].isdigit() else 0])


class Unseen(Shared):
    """Site whose pages differ at each request."""

    count = 0

    def respond(self, request: SiteRequest) -> SiteResponse:
        """Return a page with a new number."""
        Unseen.count += 1
        body = super().respond(request).body
        assert isinstance(body, str)
        return SiteResponse(body.replace("</h1>", f" {Unseen.count}</h1>"))


def kit(site: Shared) -> WebBrowser:
    """Return a new session."""

    class Kit(WebBrowser):
        window_tokens = 1000

        def sites(self, task: Task) -> dict[str, Shared]:
            return {"site.test": site}

        def home(self, task: Task) -> str:
            return "http://site.test/0"

    made = Kit()
    made.start(Task("walk"), None)  # type: ignore[arg-type]
    _run_without_waiting(made.open())
    return made


def walk(browser: WebBrowser, rng: random.Random) -> list[Callable[[], Coroutine[Any, Any, str]]]:
    """Take ten actions, half of which open a page."""
    return [
        lambda: browser.open(f"/{rng.randrange(SITE_PAGES)}"),
        lambda: browser.find("price"),
        lambda: browser.click(rng.randrange(3, 8)),
        lambda: browser.scroll(line=2),
        lambda: browser.type(1, "water"),
        lambda: browser.press("Enter"),
        lambda: browser.click(3),
        lambda: browser.find("order"),
        lambda: browser.back(),
        lambda: browser.open(),
    ]


def actions_a_second(site: Shared, seconds: float) -> float:
    """Return the actions per CPU second."""
    browser, rng = kit(site), random.Random(0)
    actions = walk(browser, rng)
    for act in actions * 30:
        _run_without_waiting(act())
    done, begun = 0, time.process_time()
    while time.process_time() - begun < seconds:
        for act in actions:
            _run_without_waiting(act())
        done += len(actions)
    return done / (time.process_time() - begun)


def session_bytes(sessions: int) -> float:
    """Return the resident bytes of a session after some actions."""
    kit(Shared()).close()
    gc.collect()
    before, rng = resident(), random.Random(1)
    kept = []
    for _ in range(sessions):
        browser = kit(Unseen())  # With pages of its own.
        for act in walk(browser, rng) * 2:
            _run_without_waiting(act())
        kept.append(browser)
    return (resident() - before) / len(kept)


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def page_ms(size: int, rounds: int) -> float:
    """Return the CPU milliseconds to convert a page's HTML to numbered text: the best round of each page, the median
    over pages.
    """
    best_times = []
    for seed in range(10):
        text, times = page(size, seed), []
        for _ in range(rounds):
            begun = time.process_time()
            document._parsed(text)
            times.append((time.process_time() - begun) * 1e3)
        best_times.append(min(times))
    return statistics.median(best_times)


def measure(
    seconds: float = 2.0, sessions: int = 1000, rounds: int = 15
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the figures and the targets."""
    figures = {
        "actions_a_cpu_second, pages that others have seen": round(actions_a_second(Shared(), seconds)),
        "actions_a_cpu_second, pages that nobody has seen": round(actions_a_second(Unseen(), seconds)),
        "bytes_a_session": round(session_bytes(sessions)),
        "page_ms, 4 KB": round(page_ms(PAGE_BYTES, rounds), 3),
        "page_ms, 44 KB": round(page_ms(LARGE_BYTES, rounds), 3),
    }
    names = list(figures)
    targets = [
        target(names[0], figures[names[0]], least=ACTIONS_A_SECOND),
        target(names[1], figures[names[1]]),
        target(names[2], figures[names[2]], most=SESSION_BYTES),
        target(names[4], figures[names[4]], most=LARGE_MS),
    ]
    return figures, targets
