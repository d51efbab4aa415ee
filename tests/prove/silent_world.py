"""TwoHop with its tool switched off: every search finds nothing."""

from palaestra.envs import tool
from palaestra.envs.suite.two_hop import TwoHop


class Silent(TwoHop):
    """Find a fact that cannot be found."""

    @tool
    def search(self, query: str) -> str:
        """Look up one fact."""
        return "no result"
