"""Run a vLLM server as a child process: start it with palaestra's settings, wait until it answers, and end it.

Left out: the virtual environment of the server (`environment`), and when to start it again (`palaestra serve vllm`).
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
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.agents.engines.vllm import keeper, worker
from palaestra.errors import Broken

_HEALTH_SECONDS = 5.0
_WARM_SECONDS = 300.0
"""Timeout of the first turn, in seconds; some of vLLM is compiled in it."""
_SHOWN_LINES = 12
_MODULE = "palaestra_vllm_worker"


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of a vLLM server: the model, and the options of the server."""

    python: Path
    model: str
    kind: str
    """Kind of machine: `cpu` or `cuda`."""
    host: str = "127.0.0.1"
    dtype: str = "auto"
    max_model_len: int | None = None
    memory_gb: int = 4
    """Memory for keys and values on CPU, in GiB."""
    transfer: str = "files"
    """Transfer of weights: `files`, or `nccl` or `ipc` of vLLM."""
    options: Sequence[str] = ()
    """Further options of vLLM's command line."""
    cards: Sequence[str] = ()
    """GPUs of the server, as CUDA_VISIBLE_DEVICES names them; empty for all that this process may use."""

    def command(self, port: int) -> list[str]:
        """Return the command that starts the server, without the program `vllm`, which fails in the CPU build."""
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
        """Return the environment variables of the server process. `folder` holds the worker extension (`worker`)."""
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
        variables = {
            "PYTHONPATH": path,
            "PALAESTRA_NEWEST": str(folder / "newest"),
            "VLLM_SERVER_DEV_MODE": "1",  # The routes that take weights.
            "VLLM_NO_USAGE_STATS": "1",
        }
        if self.kind == "cpu":
            # More threads than free cores wait for each other and run several times slower than one.
            variables |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
            # Otherwise small parts of sampling are compiled for half a minute when they are first used.
            variables |= {"TORCH_COMPILE_DISABLE": "1"}
            variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(self.memory_gb)}
        if self.cards:
            variables |= {"CUDA_VISIBLE_DEVICES": ",".join(self.cards)}
        if self.transfer == "ipc":
            variables |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
        return {**os.environ, **variables}


class Server:
    """One server process, which can be started again on the same port. It ends when this process ends."""

    def __init__(self, launch: Launch, port: int, folder: Path) -> None:
        """Prepare `folder`: it will hold the server's log, the worker extension, and the path of the newest weights."""
        self.launch, self.folder = launch, folder
        if not port:
            reserved = _reserved_port(launch.host)
            port = reserved.getsockname()[1]
            weakref.finalize(self, reserved.close)
        self.port = port
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(launch.host, launch.host)
        self.url = f"http://{host}:{self.port}"
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(worker.__file__, folder / f"{_MODULE}.py")

    @property
    def runs(self) -> bool:
        """Return whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server process. It answers after about half a minute (`wait`)."""
        command = [sys.executable, keeper.__file__, str(os.getpid()), *self.launch.command(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.launch.environment(self.folder)
            )

    def wait(self, seconds: float) -> None:
        """Wait until the server answers. Raise `Broken` if it exits, or does not answer within this many seconds."""
        deadline = time.monotonic() + seconds
        while not self.healthy():
            if not self.runs:
                raise Broken(f"vLLM ended while it started; the end of {self.log}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise Broken(f"vLLM did not answer within {seconds:g} s; the end of {self.log}:\n{self.tail()}")
            time.sleep(0.5)
        self.ask("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 2}}, _WARM_SECONDS)

    def restore(self) -> str:
        """Make a restarted server load the newest weights that it had before. Return a text on which weights it has."""
        newest = self.folder / "newest"
        if not newest.is_file():
            return "it has the model's own weights"
        folder = newest.read_text(encoding="utf-8")
        reply = self.ask(
            "/collective_rpc",
            {"method": "palaestra_load", "kwargs": {"folder": folder, "only": "first"}},
            _WARM_SECONDS,
        )
        faults = [result.get("error") for result in reply["results"] if result.get("error")]
        self.ask("/reset_prefix_cache", {}, _HEALTH_SECONDS)
        return f"it has the model's own weights: {faults[0]}" if faults else f"it has the weights of {folder}"

    def healthy(self) -> bool:
        """Return whether the server answers."""
        try:
            self.ask("/health", None, _HEALTH_SECONDS)
        except (OSError, ValueError):
            return False
        return True

    def ask(self, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        """Send a request (a GET if `body` is None, otherwise a POST) and return the JSON of the answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        # No proxy: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=seconds) as answer:
            text = answer.read()
        return json.loads(text) if text.strip() else {}

    def tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-_SHOWN_LINES:])

    def stop(self) -> None:
        """End the server and all its processes. Its port stays reserved, since it may be started again."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


def _reserved_port(host: str) -> socket.socket:
    """Return a socket that is bound to a free port, which nobody else is given while the socket exists. The server can
    listen on it, since both set SO_REUSEADDR and this socket never listens.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved
