"""Sites of this process in Chromium: requests to their hosts are answered here, without a network or a port.

Not here: other hosts (`envs.browser.network`). Frames of another site run in a separate process of Chromium, so they
stay empty.
"""

import base64
import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.chromium.tab import Tab
from palaestra.envs.browser.site import Site, SiteRequest, SiteResponse
from palaestra.errors import Broken

log = logging.getLogger("palaestra.envs")


async def serve(tab: Tab, sites: Mapping[str, Site]) -> None:
    """Answer all further requests of this tab to those hosts."""
    if sites:
        patterns = [{"urlPattern": f"*://{host}{port}/*"} for host in sites for port in ("", ":*")]
        tab.protocol.on("Fetch.requestPaused", lambda event: tab.begin(_answer(tab, sites, event)))
        await tab.send("Fetch.enable", {"patterns": patterns})


async def _answer(tab: Tab, sites: Mapping[str, Site], event: Mapping[str, Any]) -> None:
    try:
        answer = _respond(sites, event["request"])
    except Broken as error:
        tab.end(str(error), broken=True)
        return
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    # Chromium itself follows redirects, which come here again, and stores cookies.
    headers = [("Content-Type", answer.type), *answer.headers.items()]
    reply = {
        "requestId": event["requestId"],
        "responseCode": answer.status,
        "responseHeaders": [{"name": name, "value": line} for name, lines in headers for line in lines.splitlines()],
        "body": base64.b64encode(body).decode(),
    }
    await tab.send("Fetch.fulfillRequest", reply)


def _respond(sites: Mapping[str, Site], asked: Mapping[str, Any]) -> SiteResponse:
    parts = [base64.b64decode(part.get("bytes", "")) for part in asked.get("postDataEntries", ())]
    headers = {name.lower(): value for name, value in asked["headers"].items()}
    cookies = dict(pair.split("=", 1) for pair in headers.get("cookie", "").split("; ") if "=" in pair)
    address = urlsplit(asked["url"])
    if address.path == "/favicon.ico":  # Chromium requests it by itself, not the agent.
        return SiteResponse(status=404)
    site = sites.get(address.netloc) or sites[address.hostname or ""]
    try:
        return site.respond(SiteRequest(asked["url"], asked["method"], b"".join(parts), cookies))
    except Broken:
        raise
    except Exception as error:  # The author's code failed: the agent gets the answer of a server.
        log.warning("the site %s raised on %s", type(site).__name__, asked["url"], exc_info=error)
        return SiteResponse(f"500 {type(error).__name__}", 500, "text/plain")
