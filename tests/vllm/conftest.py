"""Real vLLM servers for the tests that need them, of a small random model that is made here.

`make test-vllm` builds vLLM's environment and names its Python in PALAESTRA_VLLM; without that name the tests that are
marked `vllm` are skipped.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
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
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Of the model `tied`, for the tests that leave it as they found it."""
    python = Path(os.environ["PALAESTRA_VLLM"])
    launch = Launch(python, str(models / "tied"), "cpu", dtype="float32", max_model_len=LONGEST, memory_gb=1)
    one = Server(launch, 0, tmp_path_factory.mktemp("server"))
    one.start()
    one.wait(START_SECONDS)
    yield one
    one.stop()


@pytest.fixture(scope="session")
def command(models: Path) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """`palaestra serve vllm` with the model `untied`, and the address that it prints."""
    words = [sys.executable, "-m", "palaestra", "serve", "vllm", str(models / "untied"), "--port", "0"]
    words += ["--python", os.environ["PALAESTRA_VLLM"], "--dtype", "float32", "--max-model-len", str(LONGEST)]
    words += ["--memory-gb", "1", "--start-seconds", str(START_SECONDS)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    late = threading.Timer(START_SECONDS + 60, process.terminate)
    late.start()
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if line.startswith("ready:"))
        late.cancel()
        yield process, ready.split()[-1]
    finally:
        late.cancel()
        process.terminate()
        process.wait(60)
        process.stdout.close()
