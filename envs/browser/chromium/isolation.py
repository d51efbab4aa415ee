"""How Chromium is started so that a page's only way out is its context's proxy.

The proxy (`envs.browser.network.proxy`) is the boundary. The flags close what would go around it: UDP of WebRTC and
QUIC, look-ups of names, and Chromium's own errands. Addresses that read this machine (file:, chrome:) reach no proxy;
Chromium lets no page of the web open them, and `check_scheme` no agent. Left out: starting it.
"""

from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.network.addresses import Refused

FLAGS = (
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # Its name in older versions.
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # The proxy looks names up; Chromium's errands fail.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
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
