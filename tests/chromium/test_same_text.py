"""A simple page reads the same in both browsers."""

import asyncio

import pytest
from simple_pages import SIMPLE_PAGES

from palaestra.envs.browser.opening import open_browser
from palaestra.envs.browser.site import Pages

pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("chromium_path")]


def test_chromium_shows_what_the_text_browser_shows() -> None:
    named = {f"/{number}": one for number, one in enumerate(SIMPLE_PAGES.values())}
    site = Pages({path: f"<!doctype html><title>T</title>{html}" for path, (html, _) in named.items()})
    browser = open_browser("chromium")

    async def read() -> dict[str, list[str]]:
        tab = browser.session({"same.test": site})
        try:
            return {path: list((await tab.open(f"http://same.test{path}")).lines) for path in named}
        finally:
            tab.close()

    try:
        assert asyncio.run(read()) == {path: lines for path, (_, lines) in named.items()}
    finally:
        browser.close()
