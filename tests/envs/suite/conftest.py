"""The coding environments over a sandbox without walls, so that these tests need none."""

import pytest
from bare_sandbox import BareSandbox

from palaestra.envs.rewards import code, symbolic
from palaestra.envs.tools import sandboxed


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Comparisons have time on a busy machine."""
    for line in (symbolic._light, symbolic._others):
        monkeypatch.setattr(line, "seconds", 60.0)


@pytest.fixture
def bare(monkeypatch):
    """One sandbox for tools and graders."""
    for module in (code, sandboxed):
        monkeypatch.setattr(module, "shared_sandbox", lambda *_, **__: BareSandbox())
