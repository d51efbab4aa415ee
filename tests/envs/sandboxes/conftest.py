"""The helpers of these tests stand beside this file; a sandbox and a session for those that name no other."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palaestra.envs.sandboxes import Limits, Session
from palaestra.envs.sandboxes.local import LocalSandbox
from palaestra.errors import SandboxUnavailable

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[LocalSandbox]:
    """One for a file, with the file's LIMITS."""
    try:
        opened = LocalSandbox(getattr(request.module, "LIMITS", Limits(seconds=60.0)), preload="bare")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def session(sandbox: LocalSandbox) -> Iterator[Session]:
    with sandbox.start() as opened:
        yield opened
