"""Real vLLM servers for the tests that need them, of a small random model that is made here.

`make test-vllm` builds vLLM's environment and names its Python in PALAESTRA_VLLM; without that name the tests that are
marked `vllm` are skipped.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palaestra.agents.engines.vllm.launch import Launch, Server

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "agents")]

from small_model import LONGEST, make_model

START_SECONDS = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/vllm" in str(item.path):
            item.add_marker(pytest.mark.vllm)
            if not os.environ.get("PALAESTRA_VLLM"):
                item.add_marker(
                    pytest.mark.skip("PALAESTRA_VLLM names no Python with vLLM; `make test-vllm` makes one")
                )


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models `tied` and `untied`."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("tied", "untied"):
        make_model(folder / name, tied=name == "tied")
    return folder


@pytest.fixture(scope="session")
def servers(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """The server of a model, started when it is first asked for; one at a time starts, and all end with the session."""
    started: dict[str, Server] = {}

    def server(name: str) -> Server:
        if name not in started:
            launch = Launch(
                Path(os.environ["PALAESTRA_VLLM"]),
                str(models / name),
                "cpu",
                dtype="float32",
                max_model_len=LONGEST,
                memory_gb=1,
                options=("--seed", "0"),
            )
            started[name] = Server(launch, 0, tmp_path_factory.mktemp(f"server-{name}"))
            started[name].start()
            started[name].wait(START_SECONDS)
        return started[name]

    yield server
    for one in started.values():
        one.stop()
