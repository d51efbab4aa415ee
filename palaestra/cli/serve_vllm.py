"""`palaestra serve vllm MODEL`: start vLLM servers for the engine of a run, and watch them until Ctrl-C.

A server that ends or hangs is started again on its port, and gets the newest weights that it had. Left out: starting
one (`palaestra.agents.engines.vllm.launch`), and the run that uses them (`--engine.kind vllm --engine.urls ...`).
"""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from palaestra.errors import Broken, UsageError

_LOOK_EVERY = 1.0
_HUNG_LOOKS = 12
"""Number of failed health checks in a row after which a server counts as hung. Each takes up to five seconds."""
_RESTARTS = 5
"""Number of ends of one server in a row, each within a minute of its start, after which the command stops."""
_EARLY = 60.0


@dataclass(frozen=True)
class ServeVLLMOptions:
    """Start vLLM servers that a run can sample from and send weights to, and watch them.

    By default they listen on this machine only. Everyone who can reach them may change their weights.
    """

    model: Annotated[str, tyro.conf.Positional]
    """Folder or hub name of the model that will be trained."""
    replicas: int = 1
    """Number of servers, each with a whole model. The GPUs are divided equally among them; for a model on several
    GPUs add --vllm "--tensor-parallel-size N"."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for every network of this machine. Changing weights needs no password."""
    port: int = 8000
    """Port of the first server; the others use the next ones. 0 chooses free ones."""
    python: Path | None = None
    """Python interpreter of an environment that has vLLM."""
    environment: Path | None = None
    """Folder of a Python environment with vLLM, created if it is missing; by default ~/.cache/palaestra/vllm-cpu or
    vllm-cuda."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Build of vLLM: `auto` is cuda if NVIDIA's driver is installed, otherwise cpu."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of weights and computation; `auto` is the model's own. With float32 it agrees with a
    trainer to 1e-5."""
    max_model_len: int | None = None
    """Maximum tokens of a row (prompt and response); by default the model's own limit."""
    memory_gb: int = 4
    """Memory for the keys and values of each server on CPU, in GiB."""
    transfer: Literal["files", "nccl", "ipc"] = "files"
    """How weights are received: as files, or from GPU to GPU by vLLM's own methods. It must equal the run's
    --engine.transfer."""
    start_seconds: float = 900.0
    """Maximum seconds until a started server answers; large models need minutes."""
    vllm: str = ""
    """Further options of vLLM, in one text: --vllm "--tensor-parallel-size 2"."""

    def __post_init__(self) -> None:
        if not (self.replicas >= 1 and 0 <= self.port <= 65_535 - self.replicas):
            raise UsageError(
                f"replicas is {self.replicas} and port {self.port}; expected at least one, on ports up to 65535"
            )


def run(arguments: Sequence[str]) -> int:
    """Run the servers until interrupted."""
    import shlex

    from palaestra.agents.engines.vllm.environment import default_folder, environment, kind_here, visible_cards
    from palaestra.agents.engines.vllm.launch import Launch, Server
    from palaestra.agents.known_models import located

    options = tyro.cli(ServeVLLMOptions, args=list(arguments), prog="palaestra serve vllm")
    kind = kind_here() if options.device == "auto" else options.device
    model = located(options.model)
    _check_model(model, kind)
    python = options.python
    if python is None:
        folder = options.environment or default_folder(kind)
        print(f"vLLM's environment: {folder}; making it takes minutes", flush=True)
        python = environment(folder.absolute(), kind)
    elif shutil.which(python) is None:
        raise UsageError(f"--python is {str(python)!r}, which is no program")
    launch = Launch(
        Path(shutil.which(python) or python),
        str(Path(model).absolute()) if Path(model).exists() else model,
        kind,
        host=options.host,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
        memory_gb=options.memory_gb,
        transfer=options.transfer,
        options=tuple(shlex.split(options.vllm)),
    )
    server_root = Path(tempfile.mkdtemp(prefix="palaestra-serve-vllm-"))
    ports = [options.port + number if options.port else 0 for number in range(options.replicas)]
    shares = divided_cards(visible_cards(), options.replicas) if kind == "cuda" else [()] * options.replicas
    servers = [
        Server(replace(launch, cards=cards), port, server_root / str(number))
        for number, (port, cards) in enumerate(zip(ports, shares, strict=True))
    ]
    # A service manager ends this process by SIGTERM, and the servers must end with it.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    try:
        for server in servers:
            server.start()
            server.wait(options.start_seconds)
        print(f"ready: --engine.kind vllm --engine.urls {' '.join(server.url for server in servers)}", flush=True)
        print("Ctrl-C ends it", flush=True)
        watch(servers, options.start_seconds)
    except KeyboardInterrupt:
        print("ended")
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(server_root, ignore_errors=True)
    return 0


def divided_cards(cards: Sequence[str], replicas: int) -> list[tuple[str, ...]]:
    """Return each server's own GPUs: equally many, side by side. Raise a UsageError if there are fewer than servers."""
    if len(cards) < replicas:
        raise UsageError(f"replicas is {replicas}, and there are {len(cards)} GPUs, of which each server needs its own")
    share = len(cards) // replicas
    return [tuple(cards[number * share : (number + 1) * share]) for number in range(replicas)]


def watch(servers: Sequence["Server"], start_seconds: float) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Start each server again that ends or hangs, until interrupted. Raise `Broken` if one ends again and again."""
    silent, early = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0)
    started_at = dict.fromkeys(servers, time.monotonic())
    while True:
        time.sleep(_LOOK_EVERY)
        for server in servers:
            silent[server] = 0 if server.healthy() else silent[server] + 1
            if server.runs and silent[server] < _HUNG_LOOKS:
                continue
            why = "does not answer" if server.runs else f"ended; its last words:\n{server.tail()}"
            print(f"{server.url} {why}\n{server.url} is started again", file=sys.stderr, flush=True)
            early[server] = early[server] + 1 if time.monotonic() - started_at[server] < _EARLY else 0
            if early[server] >= _RESTARTS:
                raise Broken(f"{server.url} died {_RESTARTS} times within {_EARLY:g} s of its start")
            server.stop()
            server.start()
            server.wait(start_seconds)
            silent[server], started_at[server] = 0, time.monotonic()
            print(f"{server.url} is back: {server.restore()}", file=sys.stderr, flush=True)


def _check_model(name: str, kind: str) -> None:
    """Raise a UsageError for a model that vLLM would refuse: vLLM itself does so later and less clearly."""
    from transformers import AutoConfig

    from palaestra.agents.engines.vllm.checks import refused_on_cpu
    from palaestra.agents.model_folder import misplaced

    if name == "tiny":
        raise UsageError("the tiny agent is made by a run; vLLM serves a folder or hub name: runs/NAME/model")
    if wrong := misplaced(name):
        raise UsageError("; ".join(wrong))
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"no model could be read from {name!r}: {str(error).splitlines()[0]}") from error
    if kind == "cpu" and (reason := refused_on_cpu(config)):
        raise UsageError(reason)
