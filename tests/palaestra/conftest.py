"""The tests of the endpoint share `fake_server` with the agents' tests; those of formats share `format_helpers`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "agents"), str(Path(__file__).parent)]
