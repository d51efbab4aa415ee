"""Weights from a trainer's GPU to the GPUs of vLLM servers, by vLLM's own means: NCCL, or CUDA's shared memory (IPC).

The trainer's side is vLLM's own too, so it must be installed beside the trainer: palaestra[vllm]. A server is started
with the same means (`palaestra serve vllm --transfer nccl`). IPC is for servers that share the trainer's GPU. A server
that was started anew has weights again at the next update, not before. Written against the source of vllm 0.32 and
0.33, and never run: no GPU has met it. Left out: several trainer processes, and models that are sharded over them.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from palaestra.agents.engines.vllm.replica import CONTROL_SECONDS, LOAD_SECONDS, Lost, Refused, Replica
from palaestra.errors import MissingExtra

_FAILED = (OSError, RuntimeError, ValueError)


class Transfer:
    """The trainer's end, one for each server; made when a server is first given weights."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._pairs: Sequence[tuple[str, Any]] = ()
        self._ends: dict[str, Any] = {}

    def giving(self, pairs: Sequence[tuple[str, Any]]) -> Callable[[Replica], Awaitable[None]]:
        """How a server gets these weights."""
        self._pairs = pairs

        async def give(replica: Replica) -> None:
            try:
                if replica.url not in self._ends or replica.reviving:
                    self._ends[replica.url] = await self._opened(replica)
                end = self._ends[replica.url]
                # In a thread: it computes and asks the server at once. The servers' loop must go on.
                await asyncio.wait_for(asyncio.to_thread(end.send_weights), LOAD_SECONDS)
            except (TimeoutError, *_FAILED) as error:  # What `requests` raises is an OSError.
                self._ends.pop(replica.url, None)
                raise Lost(f"{replica.url} did not take weights by {self._kind}: {error}") from None

        return give

    def close(self) -> None:
        """Let the servers' ends go."""
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
            """The pairs of the update at hand, each time they are asked for."""

            def metadata(self) -> list[Any]:
                return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in transfer._pairs]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                return iter([(name, tensor.detach()) for name, tensor in transfer._pairs])

        client = HTTPVLLMWeightSyncClient(replica.url, timeout=LOAD_SECONDS)
        if self._kind == "ipc":
            kind, how = IPCTrainerWeightTransferEngine, IPCTrainerInitInfo(rank=0)
        else:
            found = await replica.ask("/get_world_size", None, CONTROL_SECONDS)
            if not isinstance(found, dict) or not isinstance(found.get("world_size"), int):
                raise Refused(f"{replica.url} does not say on how many GPUs it runs")
            address, port = _meeting_place(replica.url)
            # The trainer is the first of the group, the server's workers are the others.
            how = NCCLTrainerInitInfo(
                rank=0, master_address=address, master_port=port, world_size=1 + found["world_size"]
            )
            kind = NCCLTrainerWeightTransferEngine
        opening = asyncio.to_thread(kind.trainer_init, how, client=client, source=Source())
        return await asyncio.wait_for(opening, LOAD_SECONDS)


def _meeting_place(url: str) -> tuple[str, int]:
    """An address of this machine that a server reaches, and a free port."""
    host, _, port = url.partition("://")[2].partition("/")[0].rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((host or "127.0.0.1", int(port or 80)))  # Sends nothing; it only chooses a way.
        address = towards.getsockname()[0]
    with socket.socket() as free:
        free.bind((address, 0))
        return str(address), int(free.getsockname()[1])
