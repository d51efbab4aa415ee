"""What `test_ranks` has torchrun start: runs of the random agent, one after the other, by all ranks together.

Its argument is a file of JSON: a list of [folder, model, changes, steps]. A step of -1 has the last rank die in the
middle of the run's second.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

from going import run_of  # noqa: E402

from palaestra.trainers.measuring import measure_before  # noqa: E402
from palaestra.trainers.progress import result_of  # noqa: E402
from palaestra.trainers.reinforce import practise, prepare  # noqa: E402
from palaestra.trainers.run import Run  # noqa: E402
from palaestra.trainers.scale.ranks import joined, noticing_loss  # noqa: E402


def take(ranks, folder, model, changes, steps):
    """Begin a run, or go on with it, for so many steps."""
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    config = run_of(model, **changes)
    run = Run(folder, config) if ranks.first else None
    ranks.meet()
    with run or Run(folder, config, rank=ranks.rank) as run, noticing_loss():
        learner = result_of(prepare(run))
        measure_before(run, learner)
        stage = practise(run, learner)
        for step in range(steps if steps >= 0 else 99):
            if steps < 0 and step == 1 and ranks.rank == ranks.count - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if next(stage, None) is None:
                break
        stage.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(60) as ranks:
        for folder, *rest in json.loads(Path(sys.argv[1]).read_text()):
            take(ranks, Path(folder), *rest)
        ranks.part()
