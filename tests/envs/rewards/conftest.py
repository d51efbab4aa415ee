"""Judges are tested with `fake_server` of the agents' tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "agents"))
