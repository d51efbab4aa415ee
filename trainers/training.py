"""A run from wherever it stands to its end, whatever its kind: the one way that Python and the command line share."""

from collections.abc import Generator

from palaestra.agents.local_model import LocalModel
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.interrupts import Interrupts
from palaestra.trainers.progress import Progress
from palaestra.trainers.reinforce import reinforce
from palaestra.trainers.run import Run
from palaestra.trainers.scale.ranks import noticing_loss
from palaestra.trainers.sft import imitate
from palaestra.trainers.tracking import tracked


def train(
    run: Run, interrupts: Interrupts | None = None, opened: LocalModel | None = None
) -> Generator[Progress, None, None]:
    """Take a run to its end, telling how far it is. A finished one stays as it is.

    Whoever stops asking, or is interrupted, finds a checkpoint of the last step; the same call goes on from there.
    `opened` is the run's model, where a caller has loaded it already.
    """
    if run.finished:
        return
    stage = reinforce(run, interrupts, opened) if isinstance(run.config, GRPOConfig) else imitate(run, interrupts)
    with noticing_loss():
        yield from tracked(run, stage)
