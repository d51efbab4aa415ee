"""The tests by row share what those of agents, trainers and commands share."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [*(str(TESTS / room) for room in ("agents", "trainers", "cli")), str(Path(__file__).parent)]
