"""Test environments, registered once."""

import sys
import threading
from pathlib import Path

import pytest

import palaestra

sys.path.insert(0, str(Path(__file__).parent))
IDS = {"Kitchen": "test/Kitchen-v0", "Inline": "test/Inline-v0", "Unstartable": "test/Unstartable-v0"}


@pytest.fixture(autouse=True)
def worlds():
    """Register the test environments for a test, and forget them after it."""
    import gymnasium
    import worlds as module

    for name, env_id in IDS.items():
        palaestra.register(env_id, f"worlds:{name}")
    module.opened.clear()
    module.gate.clear()
    yield module
    module.gate.set()
    for thread in threading.enumerate():  # What closes toolkits aside must not write into the next test's list.
        if thread.name == "palaestra-close":
            thread.join(60)
    for env_id in IDS.values():
        gymnasium.registry.pop(env_id, None)
