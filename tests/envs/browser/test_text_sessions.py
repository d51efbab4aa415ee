"""A tab without scripts: forms, cookies, history, redirects, and what does not stop it."""

import copy

import pytest

from palaestra.envs.browser.site import Pages, SiteResponse
from palaestra.envs.browser.text.browser import TextBrowser
from palaestra.envs.core.calls import _run_without_waiting
from palaestra.errors import Broken, ToolError

FORM = """
<form id=f action="/got?old=1#x" {method}>
<input name=q value="a b"><input name=e><input value=nameless><input type=hidden name=h value=1>
<input name=off value=1 disabled><input type=checkbox name=c checked><input type=checkbox name=c value=2>
<input type=radio name=r value=x><input type=radio name=r value=y checked><input type=radio name=r value=z>
<select name=s><option>S<option value=m selected>M<option disabled>L</select>
<select name=w multiple><option>1<option>2</select><textarea name=t>one
two</textarea><input type=file name=u><button name=b value=first>Go</button>
<button name=b value=2 formaction=/other formmethod=get>No</button><input type=image name=i>
<button type=button>x</button><input type=reset></form>
<input name=outside form=f value=in><p>[1:field</p>"""


class Echo:
    """Says what it was asked; /jump leads on; /set sets cookies."""

    def __init__(self):
        self.asked = []

    def respond(self, request):
        self.asked.append(request)
        if request.path == "/":
            return SiteResponse("<title>Home</title>" + FORM.format(method=request.query.get("m", "")))
        if request.path.startswith("/jump"):
            status = int(request.query.get("status", 302))
            return SiteResponse(status=status, headers={"location": request.query.get("to", "/got")})
        if request.path == "/loop":
            return SiteResponse.redirect("/loop")
        if request.path == "/set":
            return SiteResponse("set", headers={"Set-Cookie": request.query["c"].replace("|", "\n")})
        if request.path == "/raise":
            raise ZeroDivisionError
        if request.path == "/file":
            return SiteResponse(b"x" * 12, type="application/pdf")
        if request.path == "/broken":
            raise Broken("the database is gone")
        return SiteResponse(f"<p>{request.method} {request.url}<p>{request.body.decode()}")


@pytest.fixture
def site():
    return Echo()


@pytest.fixture
def tab(site):
    return TextBrowser().session({"a.test": site, "sub.a.test": site, "b.test": site})


def do(action):
    return _run_without_waiting(action)


SENT = "h=1&c=on&r=y&s=m&t=one%0D%0Atwo&u=&outside=in"


@pytest.mark.parametrize(
    ("number", "method", "url", "body"),
    [
        (14, "GET", f"/got?q=a+b&e=&{SENT.replace('&outside', '&b=first&outside')}", ""),
        (15, "GET", f"/other?q=a+b&e=&{SENT.replace('&outside', '&b=2&outside')}", ""),
        (16, "GET", f"/got?q=a+b&e=&{SENT.replace('&outside', '&i.x=0&i.y=0&outside')}", ""),
        (14, "POST", "/got?old=1", f"q=a+b&e=&{SENT.replace('&outside', '&b=first&outside')}"),
    ],
)
def test_a_button_sends_what_a_browser_sends(tab, site, number, method, url, body):
    do(tab.open(f"http://a.test/?m=method%3D{method}"))
    do(tab.click(number))
    asked = site.asked[-1]
    assert (asked.method, asked.url, asked.body.decode()) == (method, f"http://a.test{url}", body)


def test_what_an_agent_enters_is_shown_and_sent(tab, site):
    do(tab.open("a.test"))
    do(tab.type(1, "x & y\nz"))
    do(tab.click(6))
    do(tab.click(9))
    do(tab.select(10, "s"))
    do(tab.select(11, "1"))
    do(tab.select(11, "2"))
    page = do(tab.select(11, "1"))
    assert '[1:field q = "x & yz"]' in page.lines[0] and '"2"; options: 1 | 2]' in " ".join(page.lines)
    do(tab.press("Enter"))
    do(tab.submit(12))
    sent = site.asked[-1].form
    assert (sent["q"], sent["c"], sent["r"], sent["s"], sent["w"], sent["b"]) == ("x & yz", "2", "z", "S", "2", "first")


def test_reset_brings_the_pages_values_back(tab):
    first = do(tab.open("a.test"))
    do(tab.type(1, "x"))
    do(tab.click(9))
    assert do(tab.click(18)).lines == first.lines


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (lambda tab: tab.click(99), "no [99]"),
        (lambda tab: tab.click(0), "no [0]"),
        (lambda tab: tab.click(4), "disabled"),
        (lambda tab: tab.type(10, "x"), "is a select"),
        (lambda tab: tab.type(13, "x"), "is a file"),
        (lambda tab: tab.type(14, "x"), "is a button"),
        (lambda tab: tab.select(1, "x"), "is a field"),
        (lambda tab: tab.select(10, "XXL"), "it has S, M, L"),
        (lambda tab: tab.select(10, "L"), "disabled"),
        (lambda tab: tab.press("F5"), "does nothing"),
        (lambda tab: tab.press("Enter"), "has the focus"),
        (lambda tab: tab.back(), "no page before"),
        (lambda tab: tab.open("http://c.test/"), "hosts: a.test"),
        (lambda tab: tab.open("file:///etc/passwd"), "http:// or https://"),
        (lambda tab: tab.open("http://a.test:99999/"), "no address"),
        (lambda tab: tab.open("http://[::1/"), "no address"),
        (lambda tab: tab.open("http://"), "no address"),
        (lambda tab: tab.open("http://a.test/loop"), "too many redirects \\(more than 20\\)"),
        (lambda tab: tab.open("http://a.test/jump?to=javascript:1"), "http:// or https://"),
        (lambda tab: tab.open("http://a.test/jump?to=http://[x"), "no address"),
    ],
)
def test_a_mistake_is_told_and_the_page_stays(tab, action, reason):
    before = do(tab.open("a.test"))
    with pytest.raises(ToolError, match=reason.replace("[", r"\[")):
        do(action(tab))
    assert do(tab.look()) == before


def test_a_form_is_sent_by_none_of_its_outsiders_and_required_fields_are_insisted_on():
    buttons = "<button>Go</button><button formnovalidate>No</button>"
    page = f"<input name=alone><form action=/go><input name=q required>{buttons}</form>"
    tab = TextBrowser().session({"a.test": Pages({"/": page, "/go": "gone"})})
    do(tab.open("a.test"))
    with pytest.raises(ToolError, match="in no form"):
        do(tab.submit(1))
    assert "[2] is required" in do(tab.click(3)).note
    do(tab.type(2, "x"))
    assert do(tab.press("Enter")).lines == ("gone",)
    do(tab.back())
    assert do(tab.click(4)).lines == ("gone",)


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
def test_a_redirect_keeps_or_drops_what_was_sent(status, method):
    site = Echo()
    page = f"<form method=post action='/jump?status={status}'><input name=q value=1><button>Go</button></form>"
    tab = TextBrowser().session({"a.test": site, "b.test": Pages({"/": page.replace("'/", "'http://a.test/")})})
    do(tab.open("b.test"))
    do(tab.click(2))
    assert (site.asked[-1].method, site.asked[-1].body) == (method, b"q=1" if method == "POST" else b"")


def test_cookies_belong_to_their_host_path_and_time(tab, site):
    def sent(url):
        do(tab.open(url))
        return dict(site.asked[-1].cookies)

    cookies = "own=1|all=2; Domain=a.test|deep=3; Path=/deep|safe=4; Secure|old=5; Max-Age=0|x; y"
    cookies += "|other=6; Domain=b.test|top=7; Domain=test"
    do(tab.open(f"http://a.test/set?c={cookies}"))
    assert sent("http://a.test/got") == {"own": "1", "all": "2"}
    assert sent("http://a.test/deep/er") == {"own": "1", "all": "2", "deep": "3"}
    assert sent("http://a.test/deeper") == {"own": "1", "all": "2"}
    assert sent("https://a.test/got") == {"own": "1", "all": "2", "safe": "4"}
    assert sent("http://sub.a.test/got") == {"all": "2"}
    assert sent("http://b.test/got") == {}
    do(tab.open("http://a.test/set?c=own=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"))
    assert sent("http://a.test/got") == {"all": "2"}
    assert dict(TextBrowser().session({"a.test": site}).state.jar.cookies) == {}


def test_back_asks_again_but_never_sends_a_form_twice(tab, site):
    do(tab.open("http://a.test/?m=method%3Dpost"))
    do(tab.click(14))
    do(tab.open("/next"))
    asked = len(site.asked)
    assert do(tab.back()).lines[0].startswith("POST") and len(site.asked) == asked
    assert do(tab.back()).title == "Home" and len(site.asked) == asked + 1
    with pytest.raises(ToolError):
        do(tab.back())


def test_what_is_no_page_is_refused_and_named(tab):
    before = do(tab.open("a.test"))
    page = do(tab.open("/file"))
    assert page.lines == before.lines and "application/pdf, 12 bytes" in page.note


def test_a_site_that_raises_is_status_500_and_one_that_breaks_is_broken(tab):
    page = do(tab.open("http://a.test/raise"))
    assert (page.lines, page.note) == (("500 ZeroDivisionError",), "status 500")
    with pytest.raises(Broken):
        do(tab.open("http://a.test/broken"))


def test_a_page_that_leads_on_at_once_is_followed_and_a_later_one_is_not():
    leads = '<meta http-equiv="Refresh" content="{}; URL={}">here'
    pages = {
        "/now": leads.format(0, "/end"),
        "/later": leads.format(9, "/end"),
        "/end": "end",
        "/me": leads.format(0, "/me"),
    }
    tab = TextBrowser().session({"a.test": Pages(pages)})
    assert do(tab.open("http://a.test/now")).lines == ("end",)
    page = do(tab.open("http://a.test/later"))
    assert page.lines == ("here",) and "leads on to /end after 9 s" in page.note
    with pytest.raises(ToolError, match="redirects"):
        do(tab.open("/me"))


def test_links_start_from_the_base_and_a_place_on_the_page_asks_nothing(tab, site):
    tab.state.sites = {
        **tab.state.sites,
        "c.test": Pages({"/": "<base href='http://a.test/deep/'><a href=x>1</a><a href='#p'>2</a>"}),
    }
    do(tab.open("c.test"))
    do(tab.click(1))
    assert site.asked[-1].url == "http://a.test/deep/x"
    do(tab.open("http://a.test/got#old"))
    asked = len(site.asked)
    tab.state.document = tab.state.document.__class__("", "", (), tab.state.document.elements)
    assert do(tab._follow("#new", 1)).url == "http://a.test/got#new" and len(site.asked) == asked


def test_a_snapshot_is_a_tab_of_its_own(tab):
    class Counter:
        count = 0

        def respond(self, request):
            self.count += 1
            return SiteResponse(f"{self.count}<input name=q>", headers={"Set-Cookie": f"n={self.count}"})

    browser = TextBrowser()
    first = browser.session({"n.test": Counter()})
    do(first.open("n.test"))
    do(first.type(1, "typed"))
    second = browser.restore(copy.deepcopy(first.snapshot()))
    do(first.open("/x"))
    assert do(second.look()).lines == ('1 [1:field q = "typed"]',)
    assert do(second.open("/x")).lines == ('2 [1:field q = ""]',)
    assert do(second.back()).lines == ('3 [1:field q = ""]',)
    assert do(first.open("/x")).lines == ('3 [1:field q = ""]',)
