"""Which addresses a browser may reach: allow-lists, checked addresses, and what enforces them.

`allow_list` reads what a user wrote; `checked_transport` is the text browser's network; a `FilteringProxy` on a `Way`
is the real browser's, one an episode. What may not be reached is `Refused`, a ToolError.
"""

from palaestra.envs.browser.network.addresses import Refused
from palaestra.envs.browser.network.allow import AllowList, allow_list
from palaestra.envs.browser.network.proxy import FilteringProxy
from palaestra.envs.browser.network.transport import checked_transport
from palaestra.envs.browser.network.way import ProxyLimits, Way

__all__ = ["AllowList", "FilteringProxy", "ProxyLimits", "Refused", "Way", "allow_list", "checked_transport"]
