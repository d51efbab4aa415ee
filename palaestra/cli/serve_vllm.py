"""`palaestra serve vllm MODEL`: start vLLM servers for the engine of a run, and watch them until Ctrl-C.

A server that ends or hangs is started again on its port, and gets the newest weights that it had. Left out: starting
one (`palaestra.agents.engines.vllm.launch`), and the run that uses them (`--engine.kind vllm --engine.urls ...`).
"""

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from palaestra.errors import UsageError


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
    from palaestra.agents.engines.vllm.launch import Launch
    from palaestra.agents.engines.vllm.own_servers import OwnServers
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
    ports = [options.port + number if options.port else 0 for number in range(options.replicas)]
    shares = divided_cards(visible_cards(), options.replicas) if kind == "cuda" else [()] * options.replicas
    servers = OwnServers([replace(launch, cards=cards) for cards in shares], ports, options.start_seconds)
    # A service manager ends this process by SIGTERM, and the servers must end with it.
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    try:
        servers.start()
        print(f"ready: --engine.kind vllm --engine.urls {' '.join(servers.urls)}", flush=True)
        print("Ctrl-C ends it", flush=True)
        servers.watch()
    except KeyboardInterrupt:
        print("ended")
    finally:
        servers.stop()
    return 0


def divided_cards(cards: Sequence[str], replicas: int) -> list[tuple[str, ...]]:
    """Return each server's own GPUs: equally many, side by side. Raise a UsageError if there are fewer than servers."""
    if len(cards) < replicas:
        raise UsageError(f"replicas is {replicas}, and there are {len(cards)} GPUs, of which each server needs its own")
    share = len(cards) // replicas
    return [tuple(cards[number * share : (number + 1) * share]) for number in range(replicas)]


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
