"""Steps that two ranks take together: processes of their own that meet over gloo, without torchrun's third.

The argument is a folder, in which the first rank writes what each case came to. Both ranks are forks of one process:
what takes long to import is imported once.
"""

import copy
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock, patch

import torch
from torch import distributed

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

import families  # noqa: E402
from batches import batch_of, restless, settings, spoken  # noqa: E402

from palaestra.agents import Agent  # noqa: E402
from palaestra.agents.adapters import add_adapter  # noqa: E402
from palaestra.agents.engines import packed_layers  # noqa: E402
from palaestra.trainers.learn.learner import Learner, to_learn  # noqa: E402
from palaestra.trainers.learn.score_batch import score_batch  # noqa: E402
from palaestra.trainers.learn.update import update  # noqa: E402
from palaestra.trainers.losses import chunked_logprobs, onednn_linear  # noqa: E402
from palaestra.trainers.scale.fsdp import whole_weights  # noqa: E402
from palaestra.trainers.scale.ranks import ALONE, Ranks  # noqa: E402

LENGTHS = (6, 30, 9, 12, 20)
COUNT = 2


CASES = {
    "plain": ("grpo-t", {}),
    "each pass": ("grpo-t", {"reduce_each_pass": True}),
    "adapter": ("grpo-t", {"lora_r": 4, "beta": 0.1}),
    "8 bits": ("grpo-t", {"optimizer_bits": 8}),
    "offload": ("grpo-t", {"optimizer_offload": True}),
    "critic": ("ppo", {"beta": 0.05}),
    "oneDNN": ("grpo-t", {}),
}
"""With oneDNN the gradients of output layer and embedding add up in place, on ranks those of gathered weights."""


def steps(name, ranks=ALONE, count=2):
    """What steps on five episodes come to, each a micro-batch: of two ranks one has a pass too many.

    It is the figures of the last step, the weights that an engine gets, how often gradients were summed in a step, and
    the learner.
    """
    recipe, changes = CASES[name]
    model = restless()
    batch = batch_of(spoken(model, [(0, [length], float(number % 2)) for number, length in enumerate(LENGTHS)]))
    config = settings(recipe, num_mini_batches=1, micro_batch_tokens=1, **{"beta": 0.0, **changes})
    if config.scale.lora_r:
        add_adapter(model, config.scale.lora_r, config.scale.lora_alpha, config.scale.lora_target_modules)
    reference = copy.deepcopy(model) if config.recipe.kl.beta and not config.scale.lora_r else None
    learner = Learner(Agent(families.Echo()), to_learn(model, ranks, config), config, reference=reference, ranks=ranks)
    summing = Mock(wraps=distributed.reduce_scatter_single)
    fast = patch.object(packed_layers, "_LEAST", 1 if name == "oneDNN" else packed_layers._LEAST)
    adding = Mock(wraps=onednn_linear.gradient_sum)
    in_place = patch.multiple(onednn_linear, gradient_sum=adding), patch.multiple(chunked_logprobs, gradient_sum=adding)
    with fast, in_place[0], in_place[1], patch.object(distributed, "reduce_scatter_single", summing):
        for _ in range(count):
            found = step(learner, batch)
    assert adding.called == (name == "oneDNN" and packed_layers.can_pack(model))
    weights = {key: weight.tolist() for key, weight in whole_weights(learner.model)}
    return found, weights, summing.call_count // count, learner


def step(learner, batch):
    """Take one step; returns its figures."""
    scores = score_batch(learner, batch)
    return update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)[0]


def be_rank(rank, folder):
    """Take the step as one of the ranks."""
    meeting = f"file://{folder / 'meeting'}"
    patience = timedelta(seconds=60)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=COUNT, timeout=patience)
    ranks = Ranks(rank, COUNT, distributed.new_group(backend="gloo", timeout=patience))
    found = {name: steps(name, ranks)[:3] for name in CASES}
    if ranks.first:
        (folder / "steps.json").write_text(json.dumps(found))
    ranks.part()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    be_rank(rank, Path(sys.argv[1]))
    if rank == 0:
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
