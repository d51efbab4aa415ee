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
    "config", "config.parallel", "config.weight_transfer", "envs", "logger", "utils", "utils.nccl",
    "distributed.device_communicators", "distributed.device_communicators.pynccl_wrapper",
)  # fmt: skip
for name in ("vllm", "vllm.distributed"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [f"{FOLDER}/{name.replace('.', '/')}"]
for name in PARTS:
    sys.modules[f"vllm.{name}"] = MagicMock()
sys.modules["vllm"].envs = sys.modules["vllm.envs"]
sys.modules["pybase64"] = base64

sent: list[list[tuple[str, list[float]]]] = []
posted: list[str] = []


async def two_updates() -> None:
    """Send weights twice, as an engine does after two steps."""
    from palaestra.agents.engines.vllm.replica import Replica
    from palaestra.agents.engines.vllm.transfer import Transfer
    from palaestra.endpoint.config import Secret

    replica, transfer = Replica("http://127.0.0.1:9", Secret("")), Transfer(KIND)
    replica.ask = world_size
    for value in (1.0, 2.0):
        await transfer.giving([("a", torch.full((2,), value)), ("b", torch.full((1,), -value))])(replica)
    transfer.close()


async def world_size(path, body, seconds):
    """Answer as a server on one GPU."""
    return {"world_size": 1}


def main() -> None:
    """Replace what needs a GPU, send, and print."""
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerWeightTransferEngine
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    def send(engine, source, meta=None):
        # As NCCL's sender does, which compares each weight with the declared ones.
        pairs = NCCLTrainerWeightTransferEngine._checked_iter(source, source.metadata)
        sent.append([(name, tensor.tolist()) for name, tensor in pairs])

    with (
        patch.object(HTTPVLLMWeightSyncClient, "_post", lambda self, path, json=None: posted.append(path)),
        patch.object(NCCLTrainerWeightTransferEngine, "_open_trainer_endpoint", lambda *_: None),
        patch.object(NCCLTrainerWeightTransferEngine, "_broadcast", send),
        patch.object(NCCLTrainerWeightTransferEngine, "_post_send_sync", lambda *_: None),
        patch.object(IPCTrainerWeightTransferEngine, "_send", send),
        patch.object(IPCTrainerWeightTransferEngine, "_post_send_sync", lambda *_: None),
        patch("torch.accelerator.current_device_index", lambda: 0),
        patch("torch.cuda.get_device_properties", lambda index: MagicMock()),
    ):
        asyncio.run(two_updates())
    print(json.dumps({"sent": sent, "posted": posted}))


main()
