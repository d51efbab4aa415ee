"""One step that two ranks take together: processes of their own that meet over gloo, without torchrun's third.

The argument is a folder, in which the first rank writes the figures of the step. Both ranks are forks of one process:
what takes long to import is imported once.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

import families  # noqa: E402
from batches import batch_of, restless, settings, spoken  # noqa: E402

from palaestra.agents import Agent  # noqa: E402
from palaestra.agents.head import head_of  # noqa: E402
from palaestra.trainers.learn.forward import shares_beginnings  # noqa: E402
from palaestra.trainers.learn.learner import Learner  # noqa: E402
from palaestra.trainers.learn.score_batch import score_batch  # noqa: E402
from palaestra.trainers.learn.update import update  # noqa: E402
from palaestra.trainers.scale.fsdp import divided  # noqa: E402
from palaestra.trainers.scale.ranks import ALONE, Ranks  # noqa: E402

LENGTHS = (6, 30, 9, 12, 20)
COUNT = 2


def figures(ranks=ALONE):
    """What `update` reports of a step on five episodes, each a micro-batch: of two ranks one has a pass too many."""
    model = restless()
    batch = batch_of(spoken(model, [(0, [length], float(number % 2)) for number, length in enumerate(LENGTHS)]))
    if ranks.count > 1:
        head_of(model), shares_beginnings(model)
        model = divided(model, ranks)
    config = settings("grpo-t", num_mini_batches=1, micro_batch_tokens=1, beta=0.0)
    learner = Learner(Agent(families.Echo()), model, config, ranks=ranks)
    scores = score_batch(learner, batch)
    return update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)[0]


def be_rank(rank, folder):
    """Take the step as one of the ranks."""
    from torch import distributed

    meeting = f"file://{folder / 'meeting'}"
    patience = timedelta(seconds=60)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=COUNT, timeout=patience)
    ranks = Ranks(rank, COUNT, distributed.new_group(backend="gloo", timeout=patience))
    found = figures(ranks)
    if ranks.first:
        (folder / "figures.json").write_text(json.dumps(found))
    ranks.part()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    be_rank(rank, Path(sys.argv[1]))
    if rank == 0:
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
