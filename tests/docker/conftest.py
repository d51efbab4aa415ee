"""Sandboxes on a real engine, for the tests that need one.

`make test-docker` starts an engine of its own, builds the images and names it in DOCKER_HOST; without that name the
tests that are marked `docker` are skipped.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.docker import DockerSandbox
from palaestra.envs.sandboxes.docker.connection import DockerConnection

Open = Callable[..., DockerSandbox]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("DOCKER_HOST"):
        for item in items:
            if item.get_closest_marker("docker"):
                item.add_marker(pytest.mark.skip("no engine is named in DOCKER_HOST; `make test-docker` starts one"))


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """A client of the engine, beside the sandbox's own."""
    with DockerConnection(None).client() as api:
        yield api


@pytest.fixture(scope="session")
def docker_sandbox() -> Iterator[DockerSandbox]:
    """One for the tests that leave a sandbox as they found it."""
    with DockerSandbox(warm=1) as sandbox:
        yield sandbox


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open sandboxes of one's own: quick ones, without numpy, and without spare containers unless asked."""
    sandboxes = []

    def open_one(image: str = "runner", limits: Limits | None = None, warm: int = 0) -> DockerSandbox:
        sandbox = DockerSandbox(limits, image, preload="bare", warm=warm)
        sandboxes.append(sandbox)
        return sandbox

    yield open_one
    for sandbox in sandboxes:
        sandbox.close()
