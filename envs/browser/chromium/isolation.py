"""How Chromium is started so that a page's only way out is its context's proxy.

The proxy (`envs.browser.network.proxy`) is the boundary. The flags close what would go around it: UDP of WebRTC and
QUIC, look-ups of names, and Chromium's own errands. Schemes that read this machine (file:, chrome:) reach no proxy,
so an address is checked before it is opened, and requests for them are aborted. Left out: starting it.
"""

from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.network.addresses import Refused

FLAGS = (
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",  # The same in newer versions.
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # The proxy looks names up; Chromium looks up none.
    "--dns-prefetch-disable",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
)
"""Arguments of the browser, beside those of the caller."""
SCHEMES = ("http", "https", "about")


def context_options(proxy: str) -> dict[str, Any]:
    """Arguments of `new_context` for the proxy's address. The bypass sends even loopback through it."""
    return {
        "proxy": {"server": proxy, "bypass": "<-loopback>"},
        "accept_downloads": False,
        "service_workers": "block",
    }


def check_scheme(url: str) -> None:
    """Refuse an address that is not of the web; for whatever opens one."""
    scheme = urlsplit(url.strip()).scheme.lower()
    if scheme not in SCHEMES or (scheme == "about" and url.strip() != "about:blank"):
        raise Refused(f"addresses begin with http:// or https://, not with {scheme[:20]}:")


async def abort_other_schemes(context: Any) -> None:
    """Abort requests of a page for files and the browser's own pages."""

    async def abort(route: Any) -> None:
        await route.abort("blockedbyclient")

    await context.route(lambda url: urlsplit(url).scheme.lower() not in (*SCHEMES, "data", "blob"), abort)
