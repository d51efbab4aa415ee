"""The tests of this room share `families` with those of the agents, and a tiny random model that plays TwoHop."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))


@pytest.fixture
def two_hop():
    """Sixteen slots of TwoHop's training split."""
    import palaestra

    arena = palaestra.arena("palaestra/TwoHop-v0", 16)
    yield arena
    arena.close()
