"""Send weights with vLLM's own classes, where no GPU is: `python transfer_trial.py FOLDER KIND` prints what was sent.

FOLDER holds vllm/distributed/weight_transfer of a wheel. What else these files import is replaced by mocks, and the two
methods that touch a GPU by ones that only iterate over the weights.
"""

import asyncio
import base64
import json
import sys
from types import ModuleType
from unittest.mock import MagicMock, patch

import torch

FOLDER, KIND = sys.argv[1:]
PARTS = (
    "config", "config.parallel", "config.weight_transfer", "envs", "logger", "utils", "utils.nccl", "utils.network_utils",
    "distributed.device_communicators", "distributed.device_communicators.pynccl_wrapper",
)  # fmt: skip
for name in ("vllm", "vllm.distributed"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [f"{FOLDER}/{name.replace('.', '/')}"]
for name in PARTS:
    sys.modules[f"vllm.{name}"] = MagicMock()
sys.modules["vllm"].envs = sys.modules["vllm.envs"]
sys.modules["pybase64"] = base64

from vllm.distributed.weight_transfer import clients, ipc_engine, nccl_engine

from palaestra.agents.engines.vllm.replica import Replica
from palaestra.agents.engines.vllm.transfer import Transfer
from palaestra.endpoint.config import Secret

sent, posted = [], []


def send(engine, source, meta=None):
    """Iterate as NCCL's sender does, which compares each weight with the declared ones."""
    pairs = nccl_engine.NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata)
    sent.append([(name, tensor.tolist()) for name, tensor in pairs])


async def two_updates():
    replica, transfer = Replica("http://127.0.0.1:9", Secret("")), Transfer(KIND)
    replica.ask = world_size
    for value in (1.0, 2.0):
        await transfer.giving([("a", torch.full((2,), value)), ("b", torch.full((1,), -value))])(replica)
    transfer.close()


async def world_size(path, body, seconds):
    return {"world_size": 1}


with (
    patch.object(clients.HTTPVLLMWeightSyncClient, "_post", lambda self, path, json=None: posted.append(path)),
    patch.object(nccl_engine.NCCLTrainerWeightTransferEngine, "_open_trainer_endpoint", lambda *_: None),
    patch.object(nccl_engine.NCCLTrainerWeightTransferEngine, "_broadcast", send),
    patch.object(nccl_engine.NCCLTrainerWeightTransferEngine, "_post_send_sync", lambda self: None),
    patch.object(ipc_engine.IPCTrainerWeightTransferEngine, "_send", send),
    patch.object(ipc_engine.IPCTrainerWeightTransferEngine, "_post_send_sync", lambda *_: None),
    patch("torch.accelerator.current_device_index", lambda: 0),
    patch("torch.cuda.get_device_properties", lambda index: MagicMock()),
):
    asyncio.run(two_updates())
print(json.dumps({"sent": sent, "posted": posted}))
