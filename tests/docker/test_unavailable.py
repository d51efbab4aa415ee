"""What is not there is said, with the command that brings it, and nothing weaker is taken instead."""

import builtins
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palaestra.envs.sandboxes import open_sandbox
from palaestra.envs.sandboxes.docker import DockerSandbox, connection, images
from palaestra.errors import MissingExtra, SandboxUnavailable, UsageError


@pytest.fixture
def foreign(engine: Any) -> Iterator[str]:
    """An image with another palaestra's runner."""
    engine.tag(images.tag("runner"), "palaestra-test/old", "1")
    identity = engine.create_container("palaestra-test/old:1", ["true"])["Id"]
    engine.commit(identity, "palaestra-test/old", "2", changes=f"LABEL {images.LABEL}=0123")
    engine.remove_container(identity)
    yield "palaestra-test/old:2"
    for tag in ("1", "2"):
        engine.remove_image(f"palaestra-test/old:{tag}", force=True)


# The library leaves a socket open when nobody answers.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_an_engine_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="no engine answers") as caught:
        open_sandbox("docker", engine=f"unix://{tmp_path}/none.sock")
    for remedy in ("apt-get install docker.io", "podman.socket", "DOCKER_HOST"):
        assert remedy in str(caught.value)
    del caught
    gc.collect()  # or the library's socket would be a later test's warning


def test_a_pool_that_cannot_be_is_refused_before_an_engine_is_asked() -> None:
    for wrong in ({"max_containers": 0, "warm": 0}, {"max_containers": 1}, {"warm": -1}):
        with pytest.raises(UsageError, match="expected 0 or more"):
            open_sandbox("docker", **wrong)


def test_without_the_library_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "docker":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"palaestra\[docker\]"):
        connection.DockerConnection(None)


@pytest.mark.docker
def test_an_image_that_is_absent_or_holds_another_runner_or_none_is_refused(foreign: str) -> None:
    for image, told, remedies in (
        ("never/heard:1", "no image 'never/heard:1'", ("docker pull never/heard:1", images.COMMAND)),
        (foreign, "holds the runner 0123", (f"--base {foreign} runner",)),
        ("palaestra/base:python", "no runner of palaestra", ()),
    ):
        with pytest.raises(SandboxUnavailable, match=told) as caught:
            DockerSandbox(image=image)
        assert all(remedy in str(caught.value) for remedy in remedies)


@pytest.mark.docker
def test_a_runtime_that_is_absent_is_not_replaced_by_a_weaker_one(engine: Any) -> None:
    if "runsc" in engine.info()["Runtimes"]:
        pytest.skip("this engine has gVisor")
    with pytest.raises(SandboxUnavailable, match="no runtime 'runsc'") as caught:
        open_sandbox("docker", runtime="runsc", image="runner")
    assert "runsc install" in str(caught.value)


@pytest.mark.docker
def test_a_guard_that_is_required_and_absent_keeps_it_from_opening(engine: Any) -> None:
    with pytest.raises(SandboxUnavailable, match="forks"):
        open_sandbox("docker", image="runner", preload="bare", require=("network", "forks"))


def test_an_address_that_no_stream_can_be_kept_through_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        api_version, base_url = "1.41", "https://far.example:2376"

        def close(self) -> None: ...

    monkeypatch.setattr(connection.library(), "APIClient", lambda **settings: Client())
    with pytest.raises(SandboxUnavailable, match="ssh -L"):
        connection.DockerConnection("https://far.example:2376")
