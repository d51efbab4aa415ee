"""Whatever a site sends, in addresses, headers and pages, a tab shows a page or tells an error, and goes on."""

import html
import random

import pytest

from palaestra.envs.browser.site import SiteResponse
from palaestra.envs.browser.text.browser import TextBrowser
from palaestra.envs.core.calls import _run_without_waiting
from palaestra.errors import ToolError

WORDS = (
    "http:// https: // / [ ] : @ # ? a.test b %zz % \\ . .. = & ; \" < ' ::1 65536 0x7f javascript: charset= utf-16 "
    "url= 5 0 , Max-Age= Expires= Domain= Path= nan 1e999 - \u200b \u00e9 \uff19 \ud800 \x00 on"
)
BITS = (*WORDS.split(" "), " ", "\n", "x" * 40)


class Anything:
    """Answers with what it draws."""

    def __init__(self, rng):
        self.rng = rng

    def drawn(self):
        return "".join(self.rng.choice(BITS) for _ in range(self.rng.randint(0, 5)))

    def respond(self, request):
        def some(usual=""):
            return html.escape(self.drawn()) if self.rng.random() < 0.4 else usual

        headers = {"Set-Cookie": f"a={self.drawn()}; {self.drawn()}\n{self.drawn()}"}
        if self.rng.random() < 0.15:
            return SiteResponse(status=self.rng.choice([301, 303, 307]), headers={**headers, "Location": self.drawn()})
        kind = self.rng.choice(["text", "checkbox", "radio", "file", "image"])
        page = f"""<base href="{some()}"><a href="{some("/x")}">{some()}</a>
            <form action="{some()}" method="{some("post")}">
            <input type="{some(kind)}" name="{some("n")}" value="{some()}" maxlength="{some("9")}">
            <select name="{some("s")}"><option value="{some()}">{some("o")}</select><textarea>{some()}</textarea>
            <button formaction="{some()}" formmethod="{some()}">go</button></form>
            <meta http-equiv="refresh" content="{some("9;url=/y")}">{self.drawn()}"""
        body = page if self.rng.random() < 0.6 else page.encode("utf-8", "replace") + self.rng.randbytes(20)
        return SiteResponse(body, self.rng.choice([200, 404]), some(f"text/html; charset={self.drawn()}"), headers)


def action(tab, site, rng):
    """One that an agent might take."""
    number, text = rng.randint(1, 6), site.drawn()
    return rng.choice(
        [
            lambda: tab.open(rng.choice(["http://a.test/", text])),
            lambda: tab.click(number),
            lambda: tab.type(number, text),
            lambda: tab.select(number, rng.choice(["o", text])),
            lambda: tab.submit(number),
            lambda: tab.press(rng.choice(["Enter", "Space", text])),
            tab.back,
        ]
    )()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_site_sends_is_a_page_or_an_error_of_the_tool(seed):
    rng = random.Random(seed)
    told, seen = 0, 0
    for _ in range(20):
        site = Anything(rng)
        tab = TextBrowser().session({"a.test": site, "b": site})
        for _ in range(25):
            try:
                _run_without_waiting(action(tab, site, rng))
                seen += 1
            except ToolError:
                told += 1
    assert told > 50
    assert seen > 50
