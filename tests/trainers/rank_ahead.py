"""Runs that the first of two ranks plays alone, and models that two ranks load by shards: see `test_ranks_ahead`.

The argument is a folder, in which each rank writes what it has seen. Both ranks are forks of one process, as in
`rank_step`.
"""

import json
import os
import shutil
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

from batches import TOKENIZER, restless  # noqa: E402
from fake_vllm import vllm  # noqa: E402
from families import random_agent  # noqa: E402
from going import run_of  # noqa: E402
from made_tensors import Made  # noqa: E402

from palaestra.agents.local_model import load  # noqa: E402
from palaestra.agents.model_folder import export  # noqa: E402
from palaestra.errors import PalaestraError  # noqa: E402
from palaestra.trainers import grpo  # noqa: E402
from palaestra.trainers.rollout.rollouts import Rollouts  # noqa: E402
from palaestra.trainers.run.folder import Run  # noqa: E402
from palaestra.trainers.scale import ranks as job  # noqa: E402
from palaestra.trainers.scale.fsdp import divided  # noqa: E402
from palaestra.trainers.setup.open_learner import open_learner  # noqa: E402
from palaestra.trainers.setup.rank_engines import IdleEngine  # noqa: E402

COUNT = 2
AHEAD = {"kind": "process", "ordered": False, "max_staleness": 1, "lr_schedule": "constant"}
STILL = {**AHEAD, "learning_rate": 0.0}


def loaded(name, ranks, outline):
    """The bytes that are made while a model is loaded and sharded, and the sharded weights on this rank."""
    with Made() as made:
        local = load(name, slots=1, engine=IdleEngine, outline=outline)
        model = divided(local.model, ranks)
    return [made.all, made.largest], [weight.to_local() for weight in model.parameters()]


def memory(ranks, folder):
    """What is made to load by shards and to load whole models, what the weights have, and whether both are the same."""
    if ranks.first:
        export(restless(layers=4), TOKENIZER, folder / "large")
    ranks.meet()
    (by_shards, ours), (whole, theirs) = (loaded(str(folder / "large"), ranks, outline) for outline in (True, False))
    same = all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    sizes = [weight.nbytes for weight in restless(layers=4).parameters()]
    return {"weights": [sum(sizes), max(sizes)], "by shards": by_shards, "whole": whole, "same": same}


def take(ranks, folder, config, steps, arena=None):
    """Begin a run, or go on with it, for so many steps; returns its learner."""
    run = Run(folder, config) if ranks.first else None
    ranks.meet()
    with run or Run(folder, config, rank=ranks.rank) as run:
        learner = open_learner(run)
        with closing(grpo.train(run, learner=learner, arena=arena)) as stage:
            for _ in range(steps):
                next(stage)
    learner.agent.engine.close()
    return learner


class Gone:
    """An arena that breaks on the first rank."""

    ordered, slots, seats = False, 16, ()

    def __getattr__(self, name):
        raise RuntimeError("the arena is gone")


def stopped(ranks, folder, model):
    """What a rank is told when the first one cannot play."""
    run = Run.unwritten(run_of(model, **STILL))
    learner = open_learner(run)
    with Rollouts(learner, Gone() if ranks.first else None) as rollouts:
        try:
            rollouts.next()
        except (PalaestraError, RuntimeError) as error:
            return [type(error).__name__, str(error)]
        finally:
            learner.agent.engine.close()


def served(ranks, folder, model):
    """What one fleet is asked and given by two ranks, and the names of each rank's engine."""
    seen = []

    def keep(body, truth):
        place = folder / f"given-{len(seen)}"
        shutil.copytree(body["kwargs"]["folder"], place)
        seen.append(str(place))
        return truth

    with vllm(restless().config, palaestra_load=keep) as server:
        server.shape["max_model_len"] = 4096
        url = ranks.broadcast(lambda: server.url)
        changes = {"kind": "vllm", "urls": (url,), "eval_tasks": 0, "collapse": "off"}
        learner = take(ranks, folder / "served", run_of(model, **changes), 2)
        return {"asked": len(server.asked), "given": seen, "engine": type(learner.agent.engine).__name__}


def be_rank(rank, folder, model):
    """Do all of it as one of the ranks."""
    patience = timedelta(seconds=300)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=COUNT, timeout=patience)
    ranks = job._here = job.Ranks(rank, COUNT, distributed.new_group(backend="gloo", timeout=patience))
    found = {"memory": memory(ranks, folder)}
    take(ranks, folder / "still", run_of(model, **STILL), 3)
    for steps in (2, 2):
        take(ranks, folder / "ahead", run_of(model, **AHEAD), steps)
    found["stopped"] = stopped(ranks, folder, model)
    found["served"] = served(ranks, folder, model)
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    ranks.part()


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    agent = str(random_agent(place / "model"))
    rank = 0 if os.fork() else 1
    be_rank(rank, place, agent)
    if rank == 0:
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
