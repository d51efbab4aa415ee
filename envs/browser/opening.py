"""`open_browser` opens a browser by the name of its backend."""

from typing import Any

from palaestra.envs.browser.browser import Browser
from palaestra.envs.core.backends import Backends, Where

BROWSERS: Backends[Browser] = Backends(
    "browser",
    "open_browser",
    {
        "text": "palaestra.envs.browser.text.browser:TextBrowser",
        "chromium": "palaestra.envs.browser.chromium.browser:ChromiumBrowser",
    },
)


def open_browser(browser: Where = "text", **options: Any) -> Browser:
    """Open a new browser. To share one browser in each process, use `palaestra.envs.tools.browser` instead."""
    name, settings = BROWSERS.read(browser)
    return BROWSERS.open(name, **{**settings, **options})
