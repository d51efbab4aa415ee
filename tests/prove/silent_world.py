"""TwoHop with its tool switched off: every search fails."""

from palaestra import ToolError
from palaestra.envs import tool
from palaestra.envs.suite.two_hop import TwoHop


class Silent(TwoHop):
    """Find a fact that cannot be found."""

    @tool
    def search(self, query: str) -> str:
        """Look up one fact."""
        raise ToolError("no result")
