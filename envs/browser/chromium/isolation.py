"""Options for starting Chromium, so that a page can reach the network only through the proxy of its context.

The proxy (`envs.browser.network.proxy`) is the boundary. The flags close the ways around it: UDP of WebRTC and QUIC,
look-ups of names, and Chromium's background requests. Addresses of this computer (file:, chrome:) use no proxy:
Chromium stops web pages from opening them, and `check_scheme` stops agents. Not here: starting Chromium (`engine`).
"""

from typing import Any
from urllib.parse import urlsplit

from palaestra.envs.browser.network.addresses import AddressRefused

FLAGS = (
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",  # Its name in older versions.
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # The proxy looks names up; background requests fail.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
)
"""Arguments of the browser, in addition to those of the caller."""
SCHEMES = ("http", "https", "about")


def context_options(proxy: str) -> dict[str, Any]:
    """Return the arguments of `new_context` for a proxy's address. The bypass sends even loopback through the proxy."""
    return {
        "proxy": {"server": proxy, "bypass": "<-loopback>"},
        "accept_downloads": False,
        "service_workers": "block",
    }


def check_scheme(url: str) -> None:
    """Raise `AddressRefused` unless an address is http, https or about:blank. Call it before opening any address."""
    scheme = urlsplit(url.strip()).scheme.lower()
    if scheme not in SCHEMES or (scheme == "about" and url.strip() != "about:blank"):
        raise AddressRefused(f"addresses begin with http:// or https://, not with {scheme[:20]}:")
