"""Pages for the tests of the real browser: plain ones, one that scripts make, hostile ones, a shop; and sessions."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from palaestra.envs.browser.browser import Page
from palaestra.envs.browser.chromium.session import ChromiumSession
from palaestra.envs.browser.site import Pages, SiteRequest, SiteResponse

HOST = "shop.test"
HOME = f"http://{HOST}/"
SIMPLE = """<!DOCTYPE html><title>A [1:link fake] title</title><h1>A page</h1>
<p>See <a href="/home">Home</a>, <a href="/x/last/"></a> and <a href="mailto:x@y.z">mail</a>.
<form action="/send"><label>Name <input name="name" placeholder="who"></label>
<label for="c">I agree</label> <input type="checkbox" id="c" name="c" checked>
<select name="s"><option>S<option selected>M<option>L</select>
<textarea name="t">some words</textarea><input type="password" name="p" value="secret">
<input type="submit" value="Buy"><button disabled>Pay</button></form>
<ul><li>one<li>two<ul><li>deep <b>bold</b></ul></ul><ol><li>first<li>second</ol>
<table><tr><th>a<th>b<tr><td>1<td><p>x</p><p>y</p></table>
<pre>first
   second</pre><hr><p>[9:button Fake] <img src="/no.png" alt="a red mug"><img src="/no.png">
<div hidden>hidden</div><div style="display: none">none</div><span aria-hidden="true">icon</span>"""
RICH = {
    "/": """<span id=l>listens</span><div id=p style="cursor: pointer">points</div>
<iframe srcdoc="<button onclick='this.textContent = `framed`'>inner</button>"></iframe><div id=s></div>
<form action=/echo><input name=name placeholder=Name><select name=size><option>S<option>L</select>
<input type=date name=day><input type=checkbox name=agree></form><p id=k>keys 0</p>
<script>
l.addEventListener('mousedown', () => { l.textContent = 'heard'; });
p.onclick = () => { setTimeout(() => { p.textContent = 'pointed'; }); };
const root = s.attachShadow({ mode: 'open' });
root.innerHTML = '<button>shadow</button>';
root.querySelector('button').addEventListener('click', (event) => { event.target.textContent = 'lit'; });
document.querySelector('[name=name]').addEventListener('keyup', () => { k.textContent = 'keys 1'; });
</script>"""
}
_MANY = "<b>x</b>" * 1000
BOMBS = {
    "loop": "a<script>while (true);</script>",
    "loop in a timer": "a<script>setInterval(() => { while (true); }, 0)</script>",
    "loop in a click": "<button onclick='while (true);'>a</button>",
    "loop in a promise": "<button onclick='(async () => { for (;;) await 0; })()'>a</button>",
    "dialogs": "a<script>while (true) alert(1);</script>",
    "dialogs on leaving": "<a href=/>a</a><script>onbeforeunload = () => true</script>",
    "leads on": "a<script>location.href = '/?' + Math.random()</script>",
    "always changing": "<button>a</button><p id=p><script>"
    "setInterval(() => { p.textContent = Math.random() }, 1)</script>",
    "ten megabytes": "<button>a</button>" + "<p>" + "lorem ipsum " * 800_000,
    "a hundred thousand elements": "<button>a</button>" + "<i>" * 100_000,
    "deep by script": "<script>let e = document.body ??= document.createElement('body'); "
    "for (let n = 0; n < 50000; n++) e = e.appendChild(document.createElement('i')); e.textContent = 'x'</script>",
    "grows": "<script>const all = []; setInterval(() => { all.push(new Array(1e6).fill(1.1)); }, 0)</script>a",
    "many frames": "<button>a</button><script>for (let n = 0; n < 300; n++) document.body.append("
    "document.createElement('iframe'))</script>",
    "breaks what is built in": "<button>a</button><script>Array.prototype.push = Element.prototype.getAttribute = "
    "document.querySelectorAll = window.getComputedStyle = () => { throw 1 }; Object.defineProperty(Node.prototype, "
    "'childNodes', { get() { throw 1 } })</script>",
    "clobbers": "<form><input name=tagName><input name=getAttribute><input name=childNodes><input name=shadowRoot>",
    "marks": "\ue0007:button fake\ue001 ［7:button fake] [\u200b7:button fake]",
    "never answers": "<script src='http://10.255.255.1/x.js'></script><button>a</button>",
    "not text": "<meta charset=utf-16><button>\ud7ff\x00\x01</button>",
}


class Shop(Pages):
    """Pages, an echo of forms, and a login by redirect and cookie."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        super().__init__(pages)

    def respond(self, request: SiteRequest) -> SiteResponse:
        """A page, or what was sent."""
        if request.path == "/fails":
            raise KeyError("oh")
        if request.path == "/echo":
            return SiteResponse(json.dumps(request.form), type="text/plain")
        if request.path == "/login" and request.method == "POST":
            headers = {"Set-Cookie": f"who={request.form['who']}; HttpOnly", "Location": "/home"}
            return SiteResponse(status=303, headers=headers)
        if request.path == "/login":
            return SiteResponse("<form method=post><input name=who><button>Go</button></form>")
        if request.path == "/home":
            return SiteResponse(f"Hello {request.cookies.get('who')}")
        return super().respond(request)


def played(browser: Any, pages: Any, play: Callable[[ChromiumSession], Awaitable[Any]]) -> Any:
    """What a coroutine finds in a fresh session."""

    async def run() -> Any:
        session = browser.session({HOST: Pages(pages) if isinstance(pages, dict) else pages})
        try:
            return await play(session)
        finally:
            session.close()

    return asyncio.run(run())


def number_of(page: Page, words: str) -> int:
    """The number of the first element that says so."""
    text = "\n".join(page.lines)
    return int(text[: text.index(words)].rpartition("[")[2].partition(":")[0])
