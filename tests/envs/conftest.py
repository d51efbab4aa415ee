"""Test environments, registered for every test; what a test registers or opens is gone after it."""

import sys
import threading
from pathlib import Path

import gymnasium
import pettingzoo
import pytest

import palaestra
from palaestra import registry

sys.path.insert(0, str(Path(__file__).parent))
IDS = {"Kitchen": "test/Kitchen-v0", "Inline": "test/Inline-v0"}
REGISTRIES = (
    gymnasium.registry, pettingzoo.aec_registry, pettingzoo.parallel_registry, registry._games, registry._demonstrators
)  # fmt: skip


@pytest.fixture(autouse=True)
def worlds():
    """Register the test environments for a test, and forget after it whatever was registered."""
    import worlds as module

    before = [dict(known) for known in REGISTRIES]
    for name, env_id in IDS.items():
        palaestra.register(env_id, f"worlds:{name}")
    module.opened.clear()
    module.gate.clear()
    yield module
    module.gate.set()
    for thread in threading.enumerate():  # What closes toolkits aside must not write into the next test's list.
        if thread.name == "palaestra-close":
            thread.join(60)
    for known, held in zip(REGISTRIES, before, strict=True):
        known.clear()
        known.update(held)


@pytest.fixture
def arena():
    """Open what has many slots, by its id or of a class; closed after the test, and once more."""
    from palaestra.envs import ToolVectorEnv

    made = []

    def open_arena(what="test/Kitchen-v0", slots=4, **options):
        by_id = isinstance(what, str)
        made.append(palaestra.arena(what, slots, **options) if by_id else ToolVectorEnv(what(), slots, **options))
        return made[-1]

    yield open_arena
    for one in made:
        one.close()
        one.close()
