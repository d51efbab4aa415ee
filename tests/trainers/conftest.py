"""The tests of this room share `families` with those of the agents, and `batches` with one another."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "agents"), str(Path(__file__).parent)]
