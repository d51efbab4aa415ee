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


@pytest.fixture
def own_module(request, monkeypatch):
    """For tests of `check` that write classes: a copy of their module, to be imported by its name, which forgets what a
    test adds; and as many episodes on a busy machine as on any other."""
    from palaestra.envs.checks import cheats, trials

    name = request.module.__name__
    module = type(sys)(name)
    module.__dict__.update(vars(request.module))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(trials, "CHEAT_SECONDS", 60.0)
    monkeypatch.setattr(cheats, "SAMPLE_SECONDS", 60.0)
