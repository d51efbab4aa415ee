"""Choose the engine of a run, and start the run's own vLLM servers.

On a GPU vLLM is the engine if its environment is there. One server then shares the GPU of the learner: it sleeps while
the learner learns. Servers on GPUs of their own are named by `engine.gpus`. This was never run on a GPU.
"""

import logging
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from palaestra.agents.adapters import base_name, is_adapter
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.engines.vllm.environment import default_folder, kind_here
from palaestra.agents.engines.vllm.launch import Launch
from palaestra.agents.engines.vllm.own_servers import OwnServers, python_of
from palaestra.agents.known_models import located
from palaestra.agents.local_model import find_device
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig

log = logging.getLogger("palaestra.engines")

_running: WeakValueDictionary[tuple[Launch, ...], OwnServers] = WeakValueDictionary()
"""Servers that engines of this process use. A second engine with the same servers, as a reference model has, shares
them; they end with the last one."""
_SLOWER = (
    "sampling with the built-in engine, which is several times slower than vLLM on a GPU: 'palaestra serve vllm MODEL' "
    "makes an environment for vLLM, once, and later runs use it"
)


def chosen_engine(config: GRPOConfig, ranks: int) -> tuple[GRPOConfig, str]:
    """Return the config with its engine chosen, and a note on the choice; "" if there is nothing to report."""
    engine, on_gpu = config.engine, find_device(config.device).type == "cuda"
    if engine.kind != "auto":
        return config, ""
    if not on_gpu or config.model == "tiny" or (ranks > 1 and not engine.gpus):
        return replace(config, engine=replace(engine, kind="torch", gpus=())), ""
    try:
        python_of(engine.python, default_folder(kind_here()))
    except UsageError:
        return replace(config, engine=replace(engine, kind="torch", gpus=())), _SLOWER
    transfer = engine.transfer
    if transfer == "files" and find_spec("vllm") is not None:  # Its classes send weights from GPU to GPU.
        transfer = "nccl" if engine.gpus else "ipc"
    where = f"on GPUs {', '.join(engine.gpus)}" if engine.gpus else "on the same GPU, asleep while the learner learns"
    return replace(config, engine=replace(engine, kind="vllm", transfer=transfer)), f"sampling with vLLM {where}"


def own_launches(config: GRPOConfig) -> list[Launch]:
    """Return the settings of the servers that a run starts itself: one for each of its GPUs, or one beside the learner.

    Raise `UsageError` if there is no environment with vLLM.
    """
    engine, kind = config.engine, kind_here() if find_device(config.device).type == "cuda" else "cpu"
    folder = Path(config.model)
    model = base_name(folder) if is_adapter(folder) else located(config.model)
    dtype = "bfloat16" if config.scale.precision == "bfloat16" else "float32"
    share = () if kind == "cpu" or engine.gpus else ("--gpu-memory-utilization", f"{engine.memory_share:g}")
    launch = Launch(
        python_of(engine.python, default_folder(kind)),
        str(Path(model).absolute()) if Path(model).exists() else model,
        kind,
        dtype=dtype,
        max_model_len=config.longest_row,
        transfer=engine.transfer,
        options=share,
    )
    return [replace(launch, cards=(card,)) for card in engine.gpus] or [launch]


def vllm_engine(config: GRPOConfig, model: Any, stops: Iterable[int], **options: Any) -> VllmEngine:
    """Return the vLLM engine of a config. If it names no servers, they start now, and end with their engines."""
    engine = asdict(config.engine)
    for name in ("kind", "sampling_precision", "gpus", "memory_share", "python"):
        del engine[name]
    if config.engine.urls:
        return VllmEngine(model, stops, **engine, **options)
    launches = tuple(own_launches(config))
    servers = _running.get(launches)
    if servers is None:
        log.info("starting vLLM for this run; a large model takes minutes")
        servers = _running[launches] = OwnServers(launches)
        servers.start()
        servers.watch_in_background()
    shared = not config.engine.gpus and find_device(config.device).type == "cuda"
    return VllmEngine(
        model, stops, **engine | {"urls": servers.urls}, own_servers=servers, shares_memory=shared, **options
    )
