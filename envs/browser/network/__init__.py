"""Network access of browsers: allow-lists, checked addresses, and the code that enforces them.

`allow_list` reads what a user wrote; `checked_transport` is the text browser's network; a `FilteringProxy` on a `Way`
is the network of Chromium, one for each episode. A host that is not allowed is `AddressRefused`, a
ToolError; a host without a connection is `Unreached`, a ToolError or Broken.
"""

from palaestra.envs.browser.network.addresses import AddressRefused, Unreached, place_of
from palaestra.envs.browser.network.allow import AllowList, allow_list
from palaestra.envs.browser.network.proxy import FilteringProxy
from palaestra.envs.browser.network.transport import checked_transport
from palaestra.envs.browser.network.way import ProxyLimits, Way

__all__ = [
    "AddressRefused",
    "AllowList",
    "FilteringProxy",
    "ProxyLimits",
    "Unreached",
    "Way",
    "allow_list",
    "checked_transport",
    "place_of",
]
