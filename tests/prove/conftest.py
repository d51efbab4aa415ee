"""The proofs share `families` with the tests of the agents; worlds that only a proof needs stand beside this file."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "agents"), str(Path(__file__).parent)]
