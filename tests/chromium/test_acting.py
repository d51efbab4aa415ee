"""What the mouse and the keyboard do in the real browser, and what a reader sees of text that is placed by style."""

import time
from typing import Any

import pytest
from chromium_pages import HOME, number_of, played

from palaestra.envs.browser.chromium.browser import ChromiumBrowser
from palaestra.envs.browser.chromium.input import MAX_KEYS
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.chromium.tab import Tab
from palaestra.envs.browser.site import Pages, SiteRequest, SiteResponse
from palaestra.errors import ToolError

pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("chromium_path")]
SCENE = "<style>button, #cover { position: absolute; left: 0; width: 60px; height: 30px }</style>"
KEYS = """<input id=i aria-label=line><textarea id=t aria-label=text></textarea><p id=p></p><script>
i.onkeydown = (event) => {
  p.textContent += `${event.key}/${event.code}/${event.keyCode}/${event.shiftKey} `; i.value = '';
};
</script>"""


@pytest.mark.parametrize(
    "change",
    [
        "b.style.top = '200px'",
        "b.style.clipPath = 'inset(15px 30px)'; setTimeout(() => b.style = '', 100)",
    ],
    ids=["moves", "has no area for a while"],
)
def test_a_click_reaches_an_element_that_changes_when_the_mouse_comes(browser: ChromiumBrowser, change: str) -> None:
    page = f"""{SCENE}<button id=b onclick="this.textContent = 'clicked by mouse ' + event.isTrusted">press</button>
    <script>b.addEventListener('mouseover', () => {{ {change} }}, {{ once: true }})</script>"""

    async def play(session: ChromiumSession) -> str:
        page = await session.open(HOME)
        return " ".join((await session.click(number_of(page, "press"))).lines)

    assert played(browser, {"/": page}, play) == "[1:button clicked by mouse true]"


class SlowPictures(Pages):
    """Pages whose pictures for the mouse take their time."""

    def respond(self, request: SiteRequest) -> SiteResponse:
        """A page, or a picture."""
        if not request.path.endswith(".svg"):
            return super().respond(request)
        if request.path == "/hover.svg":
            time.sleep(0.1)
        return SiteResponse("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", 200, "image/svg+xml")


def test_a_click_waits_for_the_picture_that_comes_with_the_mouse(browser: ChromiumBrowser) -> None:
    page = """<style>#b { cursor: pointer; content: url(/plain.svg) } #b:hover { content: url(/hover.svg) }</style>
    <span id=b></span><p id=p></p><script>
    b.addEventListener('click', (event) => { p.textContent = event.isTrusted; });
    </script>"""

    async def play(session: ChromiumSession) -> str:
        page = await session.open(HOME)
        return (await session.click(number_of(page, "clickable"))).lines[-1]

    assert [played(browser, SlowPictures({"/": page}), play) for _ in range(8)] == ["true"] * 8


@pytest.mark.parametrize("doctype", ["", "<!DOCTYPE html>"], ids=["quirks", "standards"])
def test_an_element_that_stays_is_aimed_at_twice(
    browser: ChromiumBrowser, doctype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    aims: list[str] = []
    act = Tab.act

    async def counted(self: Tab, name: str, *given: Any) -> dict[str, Any]:
        aims.append(name)
        return await act(self, name, *given)

    async def play(session: ChromiumSession) -> None:
        page = await session.open(HOME)
        await session.click(number_of(page, "press"))

    monkeypatch.setattr(Tab, "act", counted)
    played(browser, {"/": f"{doctype}<button>press</button>"}, play)
    assert aims == ["aim", "aim"]


def test_a_click_that_something_else_gets_is_reported(browser: ChromiumBrowser) -> None:
    covered = f"""{SCENE}<button onmouseover="cover.style.display = ''">press</button>
    <div id=cover style="display: none">above</div>"""
    framed = f"""{SCENE}<iframe srcdoc="<button>press</button>"></iframe>
    <div id=cover style="top: 0; width: 400px; height: 300px">above</div>"""

    async def play(session: ChromiumSession) -> None:
        page = await session.open(HOME)
        with pytest.raises(ToolError, match=r"\[1\] is covered by something else: above"):
            await session.click(number_of(page, "press"))
        page = await session.open(f"{HOME}framed")
        assert (await session.click(number_of(page, "press"))).note == "the click on [1] hit above"
        assert (await session.look()).note == ""
        page = await session.open(f"{HOME}runs")
        note = "the mouse was pressed on [1], but released on above"
        assert (await session.click(number_of(page, "press"))).note == note

    runs = covered.replace("onmouseover", "onmousedown")
    played(browser, {"/": covered, "/framed": framed, "/runs": runs}, play)


def test_each_typed_character_is_a_key_event_and_those_without_a_key_arrive_in_their_order(
    browser: ChromiumBrowser,
) -> None:
    async def play(session: ChromiumSession) -> None:
        page = await session.open(HOME)
        page = await session.type(number_of(page, "field line"), "rM é?\n")
        keys = "r/KeyR/82/false M/KeyM/77/true /Space/32/false é//0/false ?/Slash/191/true"
        assert keys in " ".join(page.lines).replace("   ", " ")
        for text in ("a\U0001f600b\nc\td", "x" * MAX_KEYS + "y\nz"):
            page = await session.type(number_of(page, "textarea text"), text)
            assert await session.evaluate("t.value") == text

    played(browser, {"/": KEYS}, play)


def test_pieces_of_a_line_join_where_a_reader_sees_no_gap(browser: ChromiumBrowser) -> None:
    letters = "".join(f'<span style="display: inline-block; transform: skewY({turn}deg)">{letter}</span>'
                      for letter, turn in (("3", 30), ("9", -40), ("O", 12)))  # fmt: skip
    box = "<span style='display: inline-block; {}'>{}</span>"
    lines = {
        letters: "39O",
        f"<b>a</b>{letters} b": "a39O b",
        box.format("margin-left: 9px", "name") + box.format("margin-left: 9px", "place"): "name place",
        box.format("width: 90px", "wide") + "next": "wide next",
        f"see{box.format('', '<button>go</button>')}now": "see [1:button go] now",
        "<svg><text x=0 y=20>1</text><text x=50 y=20>2<tspan>3</tspan></text></svg>": "1 23",
        "<i style='text-transform: uppercase'>shout</i> <i style='text-transform: capitalize'>two words</i>":
            "SHOUT Two Words",
    }  # fmt: skip

    async def play(session: ChromiumSession) -> list[str]:
        return [" ".join((await session.open(f"{HOME}{at}")).lines) for at in range(len(lines))]

    pages = {f"/{at}": f"<body style='font: 20px serif'>{html}" for at, html in enumerate(lines)}
    assert played(browser, pages, play) == list(lines.values())


def test_drawn_text_that_can_be_clicked_shows_where_it_is(browser: ChromiumBrowser) -> None:
    page = """<body style="margin: 0"><svg><text x=40 y=60 font-size=20 onclick="1">7</text></svg>"""

    async def play(session: ChromiumSession) -> str:
        return (await session.open(HOME)).lines[0]

    assert played(browser, {"/": page}, play).startswith("[1:text 7 at 40,")
