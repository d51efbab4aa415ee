"""The processes of one job, as torchrun starts them: who this one is, and what they tell one another.

Every rank does the same in the same order, and asks the others only here and in the passes of a sharded model. What is
decided from something that one rank alone knows (a file, a signal, a clock) is decided by one and told to the others.

A rank that dies ends the job: torchrun ends the others, and what they were waiting for fails, at once or after
`rank_timeout` where a rank hangs. Left out: the weights (`shards`), and a job that goes on with fewer ranks.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.errors import PalaestraError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Thing = TypeVar("Thing")


class RankLost(PalaestraError):
    """Another process of the job is gone, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a job; one alone waits for nobody."""

    rank: int = 0
    count: int = 1
    group: Any = None
    """Of torch.distributed, over the host's memory."""

    @property
    def first(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    def told(self, say: Callable[[], Thing]) -> Thing:
        """What the first rank says. The others do not compute it."""
        if self.count == 1:
            return say()
        from torch import distributed

        said: list[Any] = [say() if self.first else None]
        with _together():
            distributed.broadcast_object_list(said, 0, group=self.group)
        return said[0]  # type: ignore[no-any-return]

    def gathered(self, own: Thing) -> list[Thing]:
        """What each rank has, in their order."""
        if self.count == 1:
            return [own]
        from torch import distributed

        found: list[Any] = [None] * self.count
        with _together():
            distributed.all_gather_object(found, own, group=self.group)
        return found

    def meet(self) -> None:
        """Wait until all are here."""
        self.gathered(None)

    def part(self) -> None:
        """Leave the job, when all are done. Not after an error: it might wait for a rank that is gone."""
        if self.count > 1:
            from torch import distributed

            self.meet()
            distributed.destroy_process_group()

    def summed(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Figures by name, added over the ranks."""
        every = self.gathered(dict(figures))
        names = {name: None for one in every for name in one}
        return {name: sum(one.get(name, 0.0) for one in every) for name in names}

    def add(self, tensor: "Tensor") -> "Tensor":
        """Add what each rank has in a tensor of one shape, in place."""
        if self.count > 1:
            from torch import distributed

            on_host = tensor.cpu()
            with _together():
                distributed.all_reduce(on_host, group=self.group)
            tensor.copy_(on_host)
        return tensor

    def share(self, parts: Sequence[Thing], size: Callable[[Thing], int]) -> Iterator[tuple[Thing, bool]]:
        """This rank's parts, as many as any other's. False stands beside one that is there to be waited with.

        Parts of one turn are alike in size, for all ranks wait for the largest.
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
    """The ranks of this job."""
    return _here


def started() -> int:
    """How many ranks torchrun has started; 1 where it did not start this process."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def require_alone(command: str) -> None:
    """Refuse a command that would do the same on each rank."""
    if started() > 1:
        raise UsageError(f"{command} runs in one process, and torchrun has started {started()}; start it without")


@contextmanager
def joined(timeout: float) -> Iterator[Ranks]:
    """Join the job that torchrun has started, for the length of a block; no rank waits longer for another than that."""
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
        group = distributed.new_group(backend="gloo", timeout=patience)
    _here = Ranks(distributed.get_rank(), distributed.get_world_size(), group)
    try:
        yield _here
    finally:
        _here = ALONE


@contextmanager
def noticing_loss() -> Iterator[None]:
    """What torch reports of other ranks from within a pass, as an error of ours."""
    try:
        yield
    except RuntimeError as error:
        if _here.count == 1 or not _is_of_others(error):
            raise
        raise _lost(error) from error


@contextmanager
def _together() -> Iterator[None]:
    """The same of a block in which ranks talk and nothing else is done."""
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
    """gloo has no class for it."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or any(word in str(error) for word in ("gloo", "NCCL", "onnection closed"))
