"""The coding environments over a sandbox without walls, so that these tests need none; served models are fakes."""

import json
import sys
from pathlib import Path

import pytest
from bare_sandbox import BareSandbox

from palaestra.envs.rewards import symbolic
from palaestra.envs.sandboxes.opening import SANDBOXES

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "agents")]  # demonstrated, fake_server


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Comparisons have time on a busy machine."""
    for line in (symbolic._light, symbolic._others):
        monkeypatch.setattr(line, "seconds", 60.0)


@pytest.fixture
def bare(monkeypatch):
    """One sandbox for tools and graders."""
    monkeypatch.setattr(SANDBOXES, "shared", lambda *_, **__: BareSandbox())


@pytest.fixture
def saved(tmp_path):
    """Write rows as a file of problems, to train on where they do not say; its path."""

    def write(*rows):
        path = tmp_path / "problems.jsonl"
        path.write_text("\n".join(json.dumps({"split": "train", **row}) for row in rows))
        return str(path)

    return write
