"""The coding environments over a sandbox without walls, so that these tests need none."""

import pytest
from bare_sandbox import BareSandbox

from palaestra.envs.rewards import code
from palaestra.envs.tools import sandboxed


@pytest.fixture
def bare(monkeypatch):
    """One sandbox for tools and graders."""
    for module in (code, sandboxed):
        monkeypatch.setattr(module, "shared_sandbox", lambda *_, **__: BareSandbox())
