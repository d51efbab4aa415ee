"""What `test_ranks` has torchrun start: runs of the random agent, one after the other, by all ranks together.

Its argument is a file of JSON: a list of [folder, model, changes, steps].
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

from going import run_of  # noqa: E402

from palaestra.trainers import grpo  # noqa: E402
from palaestra.trainers.run.checkpoint import save  # noqa: E402
from palaestra.trainers.run.folder import Run  # noqa: E402
from palaestra.trainers.run.saved_config import read_config  # noqa: E402
from palaestra.trainers.scale.ranks import ALONE, joined  # noqa: E402
from palaestra.trainers.setup.open_learner import open_learner  # noqa: E402


def again(folder, config=None, ranks=ALONE):
    """Take a run up, and write what was read, unchanged, to another folder."""
    with Run(folder, config or read_config(folder), rank=ranks.rank) as run:
        save(open_learner(run), folder.with_name(folder.name + "-again") / "checkpoints")


def take(ranks, folder, model, changes, steps):
    """Begin a run, or go on with it, for so many steps; 0 for what `again` does."""
    config = run_of(model, **changes)
    if not steps:
        again(folder, config, ranks)
        return
    run = Run(folder, config) if ranks.first else None
    ranks.meet()
    with run or Run(folder, config, rank=ranks.rank) as run:
        learner = open_learner(run)
        with closing(grpo.train(run, learner=learner)) as stage:
            for _ in range(min(steps, learner.steps - learner.step)):  # Never into the measurement after the last.
                next(stage)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined(600) as ranks:
        for folder, *rest in json.loads(Path(sys.argv[1]).read_text()):
            take(ranks, Path(folder), *rest)
        ranks.part()
