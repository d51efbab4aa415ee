"""The vLLM release for GPUs has the routes that are asked, and its code sends weights from GPU to GPU. Its wheel is
fetched and read, not installed.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from palaestra.agents.engines.vllm import replica
from palaestra.agents.engines.vllm.environment import PINS

ROOT = Path(__file__).resolve().parents[2]
SENT = [[["a", [value, value]], ["b", [-value]]] for value in (1.0, 2.0)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with vLLM's code for sending weights and for its routes, of the release for GPUs."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    try:
        subprocess.run([*command, *PINS["cuda"]], timeout=600, check=True)
    except subprocess.SubprocessError:
        pytest.skip(f"pip cannot fetch {PINS['cuda'][0]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        read = re.compile(r"vllm/(distributed/weight_transfer|entrypoints)/.*\.py")
        files.extractall(folder, filter(read.fullmatch, files.namelist()))
    wheel.unlink()
    return folder


@pytest.mark.parametrize("kind", ["nccl", "ipc"])
def test_every_update_sends_the_weights_of_its_step(sources: Path, kind: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("transfer_trial.py")), str(sources), kind]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["sent"] == SENT
    assert result["posted"].count("init_weight_transfer_engine") == 1
    assert result["posted"].count("finish_weight_update") == 2


def test_the_release_has_every_route_that_is_asked(sources: Path) -> None:
    ours = "\n".join(file.read_text() for file in Path(replica.__file__).parent.glob("*.py"))
    asked = set(re.findall(r'f?"(/[a-z][a-z_/0-9]+)', ours))
    assert len(asked) >= 13
    routers = "\n".join(file.read_text() for file in sources.rglob("api_router.py"))
    routers += "\n".join(file.read_text() for file in sources.glob("vllm/entrypoints/serve/instrumentator/*.py"))
    routes = dict.fromkeys(asked, "")
    routes |= {path: way for way, path in re.findall(r'@router\.(get|post)\(\s*"([^"]+)"', routers) if path in asked}
    got = {"/health", "/version", "/get_world_size"}
    assert routes == {path: "get" if path in got else "post" for path in asked}
