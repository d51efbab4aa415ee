"""A headless Chromium for the tests that look at the viewer, and a page that notices what it must not do.

`make test-browser` sets the browser up and names it in CHROMIUM; without that name the tests take one that is there,
or are skipped.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers" / "viewer"))
_ENVS = Path(__file__).parents[1] / "envs"
sys.path[:0] = [str(Path(__file__).parent), str(_ENVS / "network"), str(_ENVS / "browser")]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
WATCH = """
window.__violations = [];
document.addEventListener('securitypolicyviolation',
    (event) => window.__violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""


@dataclass
class Looked:
    """A page that is open, and all that it did besides showing itself."""

    page: Any
    requests: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Requests that came to nothing, and why."""
    faults: list[str] = field(default_factory=list)

    def open(self, path: Path, place: str = "") -> None:
        """A file, at an address within it; returns when it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(path.as_uri() + place)
        self.drawn()

    def go(self, place: str) -> None:
        """Another address of the open page."""
        self.page.evaluate("place => { location.hash = place }", place)
        self.drawn()

    def drawn(self) -> None:
        """Wait until the address is drawn."""
        self.until("document.body?.dataset.ready === (location.hash || '#')")

    def at(self, place: str) -> None:
        """Wait until one is at an address, and it is drawn."""
        self.until(f"(location.hash || '#') === {json.dumps(place)}")
        self.drawn()

    def until(self, condition: str) -> None:
        """Wait for a condition in JavaScript. As a function: a text would be evaluated, which the page forbids."""
        self.page.wait_for_function(f"() => {condition}", timeout=60_000)

    def text(self, selector: str = "body") -> str:
        """What a reader sees."""
        return str(self.page.inner_text(selector))

    def harm(self) -> list[str]:
        """Everything that a text must not bring about."""
        done = self.page.evaluate("() => [...window.__violations, window.__pwned === undefined ? [] : 'it ran'].flat()")
        return [*done, *self.faults]


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """Where the browser is."""
    named = os.environ.get("CHROMIUM", "")
    found = named or shutil.which("chromium") or shutil.which("google-chrome")
    try:
        import playwright  # noqa: F401
    except ImportError:
        if named:
            raise
        found = None
    if not found:
        pytest.skip("there is no Chromium or no playwright; `make test-browser` sets both up")
    return found


@pytest.fixture(scope="session")
def chromium(chromium_path: str) -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture
def looked(chromium: Any) -> Iterator[Looked]:
    """A fresh page."""
    page = chromium.new_page(viewport={"width": 1280, "height": 860})
    page.set_default_timeout(60_000)
    page.add_init_script(WATCH)
    seen = Looked(page)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("requestfailed", lambda request: seen.failed.update({request.url: request.failure}))
    page.on("pageerror", lambda error: seen.faults.append(str(error)))
    page.on("dialog", lambda dialog: (seen.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.on("console", lambda said: seen.faults.append(said.text) if said.type == "error" else None)
    yield seen
    page.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An agent's browser, one for all tests of a file."""
    from palaestra.envs.browser.chromium.browser import ChromiumBrowser

    opened = ChromiumBrowser()
    yield opened
    opened.close()
