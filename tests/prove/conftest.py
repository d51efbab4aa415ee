"""The proofs share `families` with the tests of the agents and `pages` with those of the house; worlds that only a
proof needs stand beside this file.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "house"), str(Path(__file__).parent)]
