"""Serve this process's sites to Chromium: this module answers requests to their hosts, without a network or a port.

Not here: other hosts (`envs.browser.network`). Not supported: frames of another site, which stay empty, because
Chromium runs them in a separate process.
"""

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.chromium.tab import Tab
from palaestra.envs.browser.site import Site, SiteRequest, SiteResponse, answer_of
from palaestra.errors import Broken


async def serve(tab: Tab, sites: Mapping[str, Site]) -> None:
    """Answer all further requests of this tab to the hosts of these sites."""
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


def _respond(sites: Mapping[str, Site], request: Mapping[str, Any]) -> SiteResponse:
    parts = [base64.b64decode(part.get("bytes", "")) for part in request.get("postDataEntries", ())]
    headers = {name.lower(): value for name, value in request["headers"].items()}
    cookies = dict(pair.split("=", 1) for pair in headers.get("cookie", "").split("; ") if "=" in pair)
    address = urlsplit(request["url"])
    if address.path == "/favicon.ico":  # Chromium requests it by itself, not the agent.
        return SiteResponse(status=404)
    site = sites.get(address.netloc) or sites[address.hostname or ""]
    return answer_of(site, SiteRequest(request["url"], request["method"], b"".join(parts), cookies))
