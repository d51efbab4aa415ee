"""What `test_deepspeed` has torchrun start: gradients and steps of two ranks, with DeepSpeed.

The argument is a folder, in which the first rank writes the figures.
"""

import json
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers")]

import families  # noqa: E402
import rank_step  # noqa: E402
from batches import restless, settings  # noqa: E402

from palaestra.trainers.learn.forward import token_logprobs  # noqa: E402
from palaestra.trainers.learn.learner import to_learn  # noqa: E402
from palaestra.trainers.learn.packing import pack  # noqa: E402
from palaestra.trainers.learn.rank_passes import passes  # noqa: E402
from palaestra.trainers.scale.ranks import joined  # noqa: E402

ZERO, ULYSSES = {"sharding": "deepspeed"}, {"sequence_parallel_size": 2}
SHARDINGS = {
    "zero": ZERO,
    "ulysses": ULYSSES,
    "zero, ulysses and checkpointed": ZERO | ULYSSES | {"gradient_checkpointing": True},
}
"""Settings whose gradients and steps must be those of one process."""
STEPS = {
    **{name: ("grpo-t", changes) for name, changes in SHARDINGS.items()},
    "zero with an adapter": ("grpo-t", {"lora_r": 4, "beta": 0.1, **ZERO | ULYSSES}),
    "zero with a critic": ("ppo", {"beta": 0.05, **ZERO}),
}
COUNT = 2


def alone(name):
    """The recipe and the settings of the same step by one process."""
    recipe, changes = STEPS[name]
    return recipe, {key: value for key, value in changes.items() if key not in (*ZERO, *ULYSSES)}


def rows_that_begin_alike():
    """Five episodes of an odd number of tokens, three of which share their first 30."""
    rows = [families.token_row(30, [length], seed=number) for number, length in enumerate((9, 14, 6, 11, 5))]
    for row in rows[1:3]:
        row.ids[:30] = rows[0].ids[:30]
    return pack([families.an_episode(row) for row in rows], [1.0] * len(rows))


def gradients(name, ranks):
    """Log-probs and gradients of one loss, with the names that the weights have in Hugging Face's files."""
    config, packed = settings("grpo-t", micro_batch_tokens=70, **SHARDINGS[name]), rows_that_begin_alike()
    model = to_learn(restless(), ranks, config)
    logprobs_N = torch.zeros_like(packed.sampled_logprobs_N)
    parts = list(passes(model, packed, config.optimizer.micro_batch_tokens, ranks))
    for micro, counts in parts:
        said = token_logprobs(model, micro)
        if counts:
            logprobs_N[micro.origin_N] = said.logprobs_N.detach()
        (said.logprobs_N * micro.weights_N).sum().backward()
    return ranks.add(logprobs_N), {key: gradient_of(weight) for key, weight in model.named_parameters()}


def gradient_of(weight):
    """The whole gradient of a weight, however it is divided."""
    if hasattr(weight, "ds_id"):
        from deepspeed.utils import safe_get_full_grad

        return safe_get_full_grad(weight)
    gradient = weight.grad
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def gaps(name, ranks):
    """The largest differences from one process: of log-probs, and of gradients beside the largest of their weight."""
    model, packed = restless(), rows_that_begin_alike()
    said = token_logprobs(model, packed)
    (said.logprobs_N * packed.weights_N).sum().backward()
    logprobs_N, found = gradients(name, ranks)
    expected = {key: weight.grad for key, weight in model.named_parameters()}
    assert found.keys() == expected.keys()
    by_weight = [float((found[key] - whole).abs().max() / whole.abs().max()) for key, whole in expected.items()]
    return float((logprobs_N - said.logprobs_N.detach()).abs().max()), max(by_weight)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with joined(60) as ranks:
        rank_step.CASES = STEPS
        figures = {
            "gaps": {name: gaps(name, ranks) for name in SHARDINGS},
            "steps": {name: rank_step.steps(name, ranks, COUNT)[:2] for name in STEPS},
        }
        if ranks.first:
            (folder / "figures.json").write_text(json.dumps(figures))
        ranks.part()
