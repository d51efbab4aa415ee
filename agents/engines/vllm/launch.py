"""A vLLM server as a child process: started with our settings, waited for, ended with all that it started.

Left out: the environment that it runs in (`environment`), and when it is started again (`palaestra serve vllm`).
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.agents.engines.vllm import keeper, worker
from palaestra.errors import Broken

_LOOK_SECONDS = 5.0
_WARM_SECONDS = 300.0
"""For the first turn, at which some of vLLM is compiled."""
_SHOWN_LINES = 12
_MODULE = "palaestra_vllm_worker"


@dataclass(frozen=True, slots=True)
class Launch:
    """What is served, and how."""

    python: Path
    model: str
    kind: str
    """`cpu` or `cuda`."""
    host: str = "127.0.0.1"
    dtype: str = "auto"
    max_model_len: int | None = None
    memory_gb: int = 4
    """For keys and values, on CPU."""
    transfer: str = "files"
    """How weights come: as files, or by vLLM's own `nccl` or `ipc`."""
    options: Sequence[str] = ()
    """More of vLLM's own."""

    def command(self, port: int) -> list[str]:
        """Not the command `vllm`: of the CPU build it fails, for it asks for metadata of another name."""
        words = [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", self.model]
        words += ["--host", self.host, "--port", str(port), "--dtype", self.dtype]
        words += ["--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--generation-config", "vllm"]
        words += ["--worker-extension-cls", f"{_MODULE}.Palaestra"]
        if self.max_model_len:
            words += ["--max-model-len", str(self.max_model_len)]
        if self.kind == "cpu":
            words += ["--enforce-eager", "--distributed-executor-backend", "uni"]
        else:
            words += ["--enable-sleep-mode"]
        if self.transfer != "files":
            words += ["--weight-transfer-config", json.dumps({"backend": self.transfer})]
        return [*words, *self.options]

    def environment(self, folder: Path) -> dict[str, str]:
        """Of the server's process. `folder` is where our part of its worker lies."""
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
        ours = {
            "PYTHONPATH": path,
            "PALAESTRA_NEWEST": str(folder / "newest"),
            "VLLM_SERVER_DEV_MODE": "1",  # The routes that take weights.
            "VLLM_NO_USAGE_STATS": "1",
        }
        if self.kind == "cpu":
            # More threads than free cores wait for each other and run several times slower than one.
            ours |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
            # Or small pieces of sampling are compiled for half a minute when they are first needed.
            ours |= {"TORCH_COMPILE_DISABLE": "1"}
            ours |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(self.memory_gb)}
        if self.transfer == "ipc":
            ours |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        return {**os.environ, **ours}


class Server:
    """One server, which may be started again on the same port. It ends with this process."""

    def __init__(self, launch: Launch, port: int, folder: Path) -> None:
        """`folder` is its own: for its log, and for what it was given."""
        self.launch, self.folder = launch, folder
        self.port = port or _free_port(launch.host)
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(launch.host, launch.host)
        self.url = f"http://{host}:{self.port}"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(worker.__file__, folder / f"{_MODULE}.py")

    @property
    def runs(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; it answers half a minute later."""
        command = [sys.executable, keeper.__file__, str(os.getpid()), *self.launch.command(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.launch.environment(self.folder)
            )

    def wait(self, seconds: float) -> None:
        """Until it answers; `Broken` where it ended instead, or took longer."""
        until = time.monotonic() + seconds
        while not self.healthy():
            if not self.runs:
                raise Broken(f"vLLM ended while it started; the end of {self.log}:\n{self.tail()}")
            if time.monotonic() > until:
                raise Broken(f"vLLM did not answer within {seconds:g} s; the end of {self.log}:\n{self.tail()}")
            time.sleep(0.5)
        self.ask("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 2}}, _WARM_SECONDS)

    def restore(self) -> str:
        """Give it the newest weights that it had before; what came of it, in words."""
        newest = self.folder / "newest"
        if not newest.is_file():
            return "it has the model's own weights"
        folder = newest.read_text(encoding="utf-8")
        found = self.ask(
            "/collective_rpc",
            {"method": "palaestra_load", "kwargs": {"folder": folder, "only": "first"}},
            _WARM_SECONDS,
        )
        faults = [one.get("error") for one in found["results"] if one.get("error")]
        self.ask("/reset_prefix_cache", {}, _LOOK_SECONDS)
        return f"it has the model's own weights: {faults[0]}" if faults else f"it has the weights of {folder}"

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            self.ask("/health", None, _LOOK_SECONDS)
        except (OSError, ValueError):
            return False
        return True

    def ask(self, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        """One question."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        # Not by a proxy of the environment: it is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=seconds) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else {}

    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-_SHOWN_LINES:])

    def stop(self) -> None:
        """End it and all its processes."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])
