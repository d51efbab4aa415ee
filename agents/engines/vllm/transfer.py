"""Send weights from a trainer's GPU to vLLM servers' GPUs with vLLM's own code: NCCL, or CUDA's shared memory (IPC).

The trainer runs vLLM's code too, so its environment must have vLLM installed: palaestra[vllm]. A server must be started
for the same kind of transfer (`palaestra serve vllm --transfer nccl`). IPC works only if server and trainer use the
same GPU. A restarted server gets no weights before the next update. This module was written from the source of vllm
0.33 and never ran on a GPU. Of several ranks the first alone sends.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from torch.nn import Parameter

from palaestra.agents.engines.vllm.replica import CONTROL_SECONDS, LOAD_SECONDS, Lost, Replica, RequestRejected
from palaestra.errors import MissingExtra

_FAILED = (OSError, RuntimeError, ValueError)


class Transfer:
    """The trainer's side of the transfers: one sender per server, opened when the server first gets weights."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pairs: list[tuple[str, Any]] = []
        self._device: Any = None
        self._ends: dict[str, Any] = {}

    def giving(self, pairs: Iterable[tuple[str, Any]]) -> Callable[[Replica], Awaitable[None]]:
        """Return a function that sends these weights to a server. Weights that were gathered or merged for it, and are
        not the trainer's own, wait in host memory: each server takes them one at a time.
        """
        self._pairs = []
        for name, tensor in pairs:
            self._device = tensor.device
            self._pairs.append((name, tensor.detach() if isinstance(tensor, Parameter) else tensor.cpu()))

        async def give(replica: Replica) -> None:
            try:
                if replica.url not in self._ends or replica.reviving:
                    self._ends[replica.url] = await self._opened(replica)
                end = self._ends[replica.url]
                # In a thread: it blocks while it computes and calls the server, and the event loop must continue.
                await asyncio.wait_for(asyncio.to_thread(end.send_weights), LOAD_SECONDS)
            except TypeError as error:  # Another release of vLLM has other classes: no server can help.
                raise RequestRejected(
                    f"this release of vllm does not fit the transfer by {self._kind}: {error}"
                ) from error
            except (TimeoutError, *_FAILED) as error:  # What `requests` raises is an OSError.
                self._ends.pop(replica.url, None)
                raise Lost(f"{replica.url} did not take weights by {self._kind}: {error}") from None

        return give

    def close(self) -> None:
        """Shut down all senders."""
        for end in self._ends.values():
            end.shutdown()
        self._ends.clear()

    async def _opened(self, replica: Replica) -> Any:
        try:
            from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ParamMeta, WeightSource
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise MissingExtra("vllm", "vllm", f"giving weights by {self._kind}") from error
        transfer = self

        class Source(WeightSource):  # type: ignore[misc]
            """The names and tensors of the current update."""

            @cached_property
            def metadata(self) -> list[Any]:
                return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in transfer._pairs]

            def iter_full(self) -> Iterator[tuple[str, Any]]:
                return ((name, tensor.to(transfer._device)) for name, tensor in transfer._pairs)

        client = HTTPVLLMWeightSyncClient(replica.url, timeout=LOAD_SECONDS)
        if self._kind == "ipc":
            kind, how = IPCTrainerWeightTransferEngine, IPCTrainerInitInfo(rank=0, packed=True)
        else:
            reply = await replica.ask("/get_world_size", None, CONTROL_SECONDS)
            if not isinstance(reply, dict) or not isinstance(reply.get("world_size"), int):
                raise RequestRejected(f"{replica.url} does not say on how many GPUs it runs")
            address, port = _meeting_place(replica.url)
            # The trainer is the first of the group, the server's workers are the others.
            how = NCCLTrainerInitInfo(
                rank=0, master_address=address, master_port=port, world_size=1 + reply["world_size"]
            )
            kind = NCCLTrainerWeightTransferEngine
        opening = asyncio.to_thread(kind.trainer_init, how, client=client, source=Source())
        return await asyncio.wait_for(opening, LOAD_SECONDS)


def _meeting_place(url: str) -> tuple[str, int]:
    """Return an address of this computer that the server at `url` can reach, and a free port of this computer."""
    host, _, port = url.partition("://")[2].partition("/")[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((host or "127.0.0.1", int(port or 80)))  # Sends nothing; it only chooses a route.
        address = towards.getsockname()[0]
    with socket.socket() as free:
        free.bind((address, 0))
        return str(address), int(free.getsockname()[1])
