"""A backend named `fake`, whose sessions live in this process."""

import sys
from pathlib import Path

import pytest

from palaestra.envs.sandboxes import opening

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "agents")]


@pytest.fixture
def fake(monkeypatch):
    """The module that holds what was asked of the backend."""
    import fake_sandbox

    monkeypatch.setitem(opening.BACKENDS, "fake", "fake_sandbox:FakeSandbox")
    monkeypatch.setattr(opening.SANDBOXES, "_shared", {})
    fake_sandbox.forget()
    return fake_sandbox
