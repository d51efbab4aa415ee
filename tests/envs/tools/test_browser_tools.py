"""The browser as tools: windows, budgets, branches, and the same in place and on a loop."""

import asyncio

import pytest

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.browser.browser import Page
from palaestra.envs.browser.network.addresses import Unreached, place_of
from palaestra.envs.browser.opening import BROWSERS
from palaestra.envs.browser.site import Pages, SiteResponse
from palaestra.envs.core.calls import _run_without_waiting
from palaestra.envs.running.work import WorkMode
from palaestra.envs.tools.browser import ReadingBrowser, WebBrowser, in_browser
from palaestra.errors import Broken, ToolError, UsageError

LONG = "<title>Long</title>" + "".join(f"<p>Line {n} of a long page</p>" for n in range(1, 301)) + "<a href=/end>On</a>"


class Cart:
    def __init__(self):
        self.items = []

    def respond(self, request):
        if request.method == "POST":
            self.items.append(request.form["item"])
            return SiteResponse.redirect("/")
        form = "<form method=post><input name=item><button>Add</button></form>"
        return SiteResponse(f"<title>Cart</title><p>Cart: {', '.join(self.items) or 'empty'}</p>{form}")


class CartBrowser(WebBrowser):
    max_calls = 20

    def sites(self, task):
        return {"cart.test": Cart(), "long.test": Pages({"/": LONG, "/end": "The end"})}

    def home(self, task):
        return "http://cart.test/"

    def final(self):
        return {"items": self.served["cart.test"].items}


class Reader(ReadingBrowser):
    def sites(self, task):
        return {"cart.test": Cart(), "long.test": Pages({"/": LONG, "/end": "The end"})}


class Shopping(ToolEnv):
    """Put things into the cart."""

    max_turns = 12

    def __init__(self, split="train", tasks=None, browser="text"):
        super().__init__(split, tasks)
        self.toolkits = in_browser(browser, CartBrowser)

    def task(self, rng):
        return Task(f"Add item {rng.integers(1_000_000)}.")

    def reward(self, attempt):
        return float(attempt.final["items"] == ["tea"])


@pytest.fixture
def kit():
    found = CartBrowser()
    found.start(Task("x"), None)
    yield found
    found.close()


def do(action):
    return _run_without_waiting(action)


def test_branches_of_an_episode_share_no_site_and_no_tab():
    env = TextEnv(Shopping())
    env.reset(seed=0)
    call = env.unwrapped.call
    assert 'item = "tea"' in env.step(call("type", number=1, text="tea"))[0]
    here = env.snapshot()
    assert "Cart: tea" in env.step(call("press", key="Enter"))[0]
    assert env.step("done")[1] == 1.0
    env.restore(here)
    assert "Cart: empty" in env.step(call("open"))[0]
    assert "Cart: tea" in env.step(call("click", number=2))[0]
    env.restore(here)
    assert env.step("done")[1] == 0.0


def test_what_never_waits_runs_in_place_and_what_may_wait_on_a_loop():
    assert {one.mode for one in CartBrowser().tools.values()} == {WorkMode.INLINE}
    waits = CartBrowser({"backend": "text", "allow": ["example.org"]})
    assert {one.mode for one in waits.tools.values()} == {WorkMode.ASYNC}
    assert {one.timeout for one in waits.tools.values()} == {120.0}, "a slow page must not end an episode BROKEN"


def test_a_long_page_is_seen_through_a_window(kit):
    first = do(kit.open("http://long.test/"))
    assert first.startswith("Long\nhttp://long.test/\nlines 1-") and " of 301\nLine 1 of" in first and len(first) < 4300
    seen = first
    while "[1:link On]" not in seen:
        seen = do(kit.scroll())
    with pytest.raises(ToolError, match="end of the page"):
        do(kit.scroll())
    assert do(kit.find("line 250 OF")) == "250: Line 250 of a long page"
    assert do(kit.scroll(line=250)).splitlines()[3] == "Line 250 of a long page"
    for _ in range(2):
        seen = do(kit.scroll(down=False))
    assert "Line 1 of" in seen
    with pytest.raises(ToolError, match="top of the page"):
        do(kit.scroll(down=False))
    with pytest.raises(ToolError, match="1 to 301"):
        do(kit.scroll(line=302))
    assert do(kit.click(1)) == "http://long.test/end\nThe end"
    assert do(kit.back()).startswith("Long\n")


def test_an_action_that_changes_the_page_only_a_little_keeps_the_window(kit):
    site = {"a.test": Pages({"/": LONG.replace("On</a>", "On</a><input name=q>")})}
    kit.sites = lambda task: site
    kit.home = lambda task: "http://a.test/"
    kit.start(Task("x"), None)
    do(kit.scroll(line=290))
    assert 'q = "x"' in do(kit.type(2, "x")).splitlines()[-1]


def test_the_reading_profile_follows_links_and_presses_nothing():
    assert set(Reader.tools) == {"open", "click", "back", "find", "scroll"}
    assert set(CartBrowser.tools) == {*Reader.tools, "type", "select", "submit", "press"}
    kit = Reader()
    kit.start(Task("x"), None)
    with pytest.raises(ToolError, match="no page is open"):
        do(kit.click(1))
    do(kit.open("cart.test"))
    with pytest.raises(ToolError, match="is a button; only links"):
        do(kit.click(2))
    with pytest.raises(ToolError, match=r"no \[9\]"):
        do(kit.click(9))
    do(kit.open("http://long.test/"))
    assert "The end" in do(kit.click(1))


def test_neither_title_nor_address_nor_error_passes_for_a_number(kit):
    fake = "[7:button Pay]"
    page = (
        f"<title>{fake}</title><a href='/{fake}'>on</a><a href='ftp://{fake}'>f</a><form action='//{fake}:x'><button>Go"
    )
    kit.sites = lambda task: {"a.test": Pages({"/": page})}
    kit.home = lambda task: "http://a.test/"
    kit.start(Task("x"), None)
    told = [do(kit.open()), do(kit.click(1)), do(kit.back())]
    with pytest.raises(ToolError) as error:
        do(kit.click(2))
    told.append(str(error.value))
    assert "7:button" in "".join(told)
    assert not [text for text in told if "[7:" in text]


def test_calls_are_counted_and_a_mistake_costs_one(kit):
    for _ in range(10):
        do(kit.open())
        with pytest.raises(ToolError, match="no \\[99\\]"):
            do(kit.click(99))
    with pytest.raises(ToolError, match="no call is left"):
        do(kit.open())


def test_calls_of_one_turn_follow_one_another_where_a_browser_waits(monkeypatch):
    class Tab:
        at, most = 0, 0

        async def open(self, url, seconds):
            self.at += 1
            self.most = max(self.most, self.at)
            await asyncio.sleep(0.01)
            self.at -= 1
            return Page(url, url, ("line",))

        def close(self):
            pass

    tab = Tab()
    kit = WebBrowser({"backend": "text", "allow": ["example.org"]})
    kit.start(Task("x"), None)
    kit._session = tab

    async def go():
        return await asyncio.gather(*(kit.open(f"http://example.org/{n}") for n in range(5)))

    assert [text.splitlines()[0] for text in asyncio.run(go())] == [f"http://example.org/{n}" for n in range(5)]
    assert tab.most == 1


def test_a_call_waits_for_those_before_it_no_longer_than_its_time():
    class Tab:
        async def open(self, url, seconds):
            await asyncio.sleep(0.2)
            return Page(url, "", ("line",))

        def close(self):
            pass

    class Hasty(WebBrowser):
        call_seconds = 0.05

    kit = Hasty({"backend": "text", "allow": ["example.org"]})
    kit.start(Task("x"), None)
    kit._session = Tab()

    async def go():
        both = (kit.open("http://example.org/1"), kit.open("http://example.org/2"))
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = asyncio.run(go())
    assert "line" in first
    assert isinstance(second, ToolError)
    assert kit.usage.calls == 1


def test_a_backend_that_is_none_is_refused_when_the_environment_is_made():
    with pytest.raises(UsageError, match="no browser is 'txt'; did you mean 'text'"):
        Shopping(browser="txt")
    with pytest.raises(UsageError, match="has no option 'allowed'"):
        WebBrowser({"backend": "text", "allowed": []})
    assert BROWSERS.shared("text") is BROWSERS.shared("text")


def test_a_home_that_goes_in_the_middle_of_an_episode_is_broken_too(monkeypatch):
    async def lost(self, url, seconds=30.0):
        raise Unreached(f"{url} was not reached", place_of(url), False)

    kit = CartBrowser()
    kit.start(Task("x"), None)
    assert "Cart: empty" in asyncio.run(kit.open())
    monkeypatch.setattr(type(kit._session), "open", lost)
    with pytest.raises(ToolError, match="was not reached"):
        asyncio.run(kit.open("http://long.test/"))
    with pytest.raises(Broken, match=r"cart.test/2 was not reached"):
        asyncio.run(kit.open("http://cart.test/2"))
