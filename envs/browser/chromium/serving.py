"""Sites of this process in Chromium: their hosts' requests are answered here, before the network, without a port.

What is no address of the web is refused. Left out: other hosts (`envs.browser.network`), and frames of another site,
which lie in a process of their own: they stay empty.
"""

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.chromium.tab import Tab
from palaestra.envs.browser.site import Site, SiteRequest, SiteResponse

FORBIDDEN = ("file:*", "chrome*:*", "devtools:*", "view-source:*", "filesystem:*")
"""What reads this machine; no page may, and `open` refuses it before."""


async def serve(tab: Tab, sites: Mapping[str, Site]) -> None:
    """Answer this tab's requests to those hosts from now on."""
    hosts = [f"*://{host}{port}/*" for host in sites for port in ("", ":*")]
    patterns = [{"urlPattern": one} for one in (*hosts, *FORBIDDEN)]
    tab.protocol.on("Fetch.requestPaused", lambda event: tab.begin(_answer(tab, sites, event)))
    await tab.send("Fetch.enable", {"patterns": patterns})


async def _answer(tab: Tab, sites: Mapping[str, Site], event: Mapping[str, Any]) -> None:
    asked = event["request"]
    if urlsplit(asked["url"]).scheme not in ("http", "https"):
        await tab.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "BlockedByClient"})
        return
    answer = _respond(sites, asked)
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    headers = {"Content-Type": answer.type, **answer.headers}
    reply = {
        "requestId": event["requestId"],
        "responseCode": answer.status,
        # A redirect leads here again, and a cookie is kept: both are Chromium's own doing.
        "responseHeaders": [{"name": name, "value": value} for name, value in headers.items()],
        "body": base64.b64encode(body).decode(),
    }
    await tab.send("Fetch.fulfillRequest", reply)


def _respond(sites: Mapping[str, Site], asked: Mapping[str, Any]) -> SiteResponse:
    parts = [base64.b64decode(part.get("bytes", "")) for part in asked.get("postDataEntries", ())]
    headers = {name.lower(): value for name, value in asked["headers"].items()}
    cookies = dict(pair.split("=", 1) for pair in headers.get("cookie", "").split("; ") if "=" in pair)
    site = sites.get(urlsplit(asked["url"]).hostname or "")
    if site is None:
        return SiteResponse("<h1>404 Not Found</h1>", 404)
    try:
        return site.respond(SiteRequest(asked["url"], asked["method"], b"".join(parts), cookies))
    except Exception as error:  # An author's code: the agent is told as a server would.
        return SiteResponse(f"<h1>500 Internal Server Error</h1><p>{type(error).__name__}</p>", 500)
