"""The tests of this room share `families` with those of the agents, and `batches` with one another."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "agents"), str(Path(__file__).parent)]


@pytest.fixture
def two_hop():
    """Sixteen slots of TwoHop's training split."""
    import palaestra

    arena = palaestra.arena("palaestra/TwoHop-v0", 16)
    yield arena
    arena.close()
