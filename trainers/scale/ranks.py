"""The processes of one torchrun job: the rank of this process, and the communication between ranks.

Every rank runs the same operations in the same order. Ranks communicate only through this module and in the passes of a
sharded model. A decision that depends on data of one rank (a file, a signal, a clock) is made on one rank and broadcast
to the others.

A rank that dies ends the job: torchrun ends the others, and their pending communication fails, at once or, if a rank
hangs, after `rank_timeout`. Left out: the weights (`fsdp`), and a job that continues with fewer ranks.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.errors import PalaestraError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Thing = TypeVar("Thing")


class RankLost(PalaestraError):
    """Error: another process of the job has ended, or did not respond in time."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The error that rank 0 raised in place of a value."""

    text: str


@dataclass(slots=True, eq=False)
class Ranks:
    """The ranks of a job. With one rank no method waits."""

    rank: int = 0
    count: int = 1
    group: Any = None
    """Process group for CPU tensors; None when there is one rank, and after `part`."""

    @property
    def first(self) -> bool:
        """Return whether this is rank 0, which writes files and logs."""
        return self.rank == 0

    def broadcast(self, compute: Callable[[], Thing]) -> Thing:
        """Compute a value on rank 0 and broadcast it to all ranks. If that raises an error, the other ranks raise
        `RankLost` with its text.
        """
        if self.count == 1:
            return compute()
        if not self.first:
            value = self._sent(None)
            if isinstance(value, _Failure):
                raise RankLost(f"rank 0 of this job has stopped: {value.text}")
            return value  # type: ignore[no-any-return]
        try:
            value = compute()
        except Exception as error:
            with suppress(RankLost):
                self._sent(_Failure(f"{type(error).__name__}: {error}"))
            raise
        self._sent(value)
        return value

    def _sent(self, value: Any) -> Any:
        """Return the value of rank 0. It is pickled, as by torch's own checkpoints: ranks trust each other."""
        from torch import distributed

        values = [value]
        with _together():
            distributed.broadcast_object_list(values, 0, group=self.group)
        return values[0]

    def gathered(self, value: Thing) -> list[Thing]:
        """Return the value of each rank, in rank order."""
        if self.count == 1:
            return [value]
        from torch import distributed

        values: list[Any] = [None] * self.count
        with _together():
            distributed.all_gather_object(values, value, group=self.group)
        return values

    def meet(self) -> None:
        """Wait until all ranks have called this method."""
        self.gathered(None)

    def part(self) -> None:
        """Wait for all ranks, then leave the job. Do not call it after an error: it might wait for a dead rank.

        gloo's threads end with the last reference to their group. A thread that frees a tensor while Python exits would
        abort the process.
        """
        if self.count > 1:
            from torch import distributed

            self.meet()
            self.group = None
            distributed.destroy_process_group()

    def summed(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return metrics by name, summed over the ranks."""
        every = self.gathered(dict(figures))
        names = {name: None for rank_figures in every for name in rank_figures}
        return {name: sum(rank_figures.get(name, 0.0) for rank_figures in every) for name in names}

    def add(self, tensor: "Tensor") -> "Tensor":
        """Sum a tensor over the ranks, in place. Its shape must be the same on all ranks."""
        if self.count > 1:
            from torch import distributed

            on_host = tensor.cpu()
            with _together():
                distributed.all_reduce(on_host, group=self.group)
            tensor.copy_(on_host)
        return tensor

    def share(self, parts: Sequence[Thing], size: Callable[[Thing], int]) -> Iterator[tuple[Thing, bool]]:
        """Yield this rank's parts, equally many on every rank. Each has a flag, which is False for a repeated part that
        only fills the last round and must not be counted.

        Parts of one round are of similar size, because all ranks wait for the largest.
        """
        if self.count == 1:
            yield from ((part, True) for part in parts)
            return
        order = sorted(parts, key=size, reverse=True)
        for begin in range(0, len(order), self.count):
            place = begin + self.rank
            yield (order[place], True) if place < len(order) else (order[-1], False)


ALONE = Ranks()
_here = ALONE


def here() -> Ranks:
    """Return the ranks of this job."""
    return _here


def started() -> int:
    """Return how many ranks torchrun has started; 1 if it did not start this process."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_alone(command: str) -> None:
    """Raise `UsageError` for a command that would do the same work on each rank."""
    if started() > 1:
        raise UsageError(f"{command} runs in one process, and torchrun has started {started()}; start it without")


@contextmanager
def joined(timeout: float) -> Iterator[Ranks]:
    """Join the torchrun job during a `with` block. `timeout` is the longest wait for another rank, in seconds."""
    global _here
    if started() == 1:
        yield ALONE
        return
    import torch
    from torch import distributed

    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    if on_gpu and local >= torch.cuda.device_count():
        raise UsageError(
            f"torchrun has started rank {local} on this machine, which has {torch.cuda.device_count()} GPUs; a rank "
            "needs one of its own: lower --nproc-per-node"
        )
    if on_gpu:
        torch.cuda.set_device(local)
    patience = timedelta(seconds=timeout)
    with _together():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=patience)
        # No variable keeps the group, or it would outlive `part`.
        _here = Ranks(
            distributed.get_rank(),
            distributed.get_world_size(),
            distributed.new_group(backend="gloo", timeout=patience),
        )
    try:
        yield _here
    finally:
        _here = ALONE


@contextmanager
def noticing_loss() -> Iterator[None]:
    """Convert torch's errors about other ranks into `RankLost`; raise other errors of the block unchanged."""
    try:
        yield
    except RuntimeError as error:
        if _here.count == 1 or not _is_of_others(error):
            raise
        raise _lost(error) from error


@contextmanager
def _together() -> Iterator[None]:
    """Convert every RuntimeError of a block that only communicates into `RankLost`."""
    try:
        yield
    except RuntimeError as error:
        raise _lost(error) from error


def _lost(error: RuntimeError) -> RankLost:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return RankLost(
        f"another rank of this job has ended, or did not answer in time (scale.rank_timeout): {text[:300]}; its own "
        "error stands above, or in torchrun's report"
    )


def _is_of_others(error: RuntimeError) -> bool:
    """Return whether an error is about other ranks. gloo has no error class, so its message is read."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or any(word in str(error) for word in ("gloo", "NCCL", "onnection closed"))
