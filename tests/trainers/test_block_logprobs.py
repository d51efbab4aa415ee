"""Log-probs by blocks are those of all logits at once, and so are their gradients; the matrix is never held."""

import subprocess
import sys

import pytest
import torch

from palaestra.agents.head import Head
from palaestra.errors import UsageError
from palaestra.trainers.losses import chunked_logprobs
from palaestra.trainers.losses.chunked_logprobs import block_logprobs

TOKENS, WIDTH, WORDS = 600, 16, 77  # more than two blocks


def made(dtype=torch.float32, bias=False):
    generator = torch.Generator().manual_seed(3)
    layer = torch.nn.Linear(WIDTH, WORDS, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=generator)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype).requires_grad_()
    weights = torch.randn(2, TOKENS, generator=generator)
    ids = torch.randint(WORDS, (TOKENS,), generator=generator)
    return layer.to(dtype), hidden, ids, weights


def at_once(head, hidden, ids, temperature):
    """Log-probs and entropies as one would write them down."""
    logprobs = (head(hidden) / temperature).log_softmax(-1)
    return logprobs.gather(1, ids[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("uses_entropy", [False, True])
@pytest.mark.parametrize(
    ("scale", "cap", "temperature", "bias"),
    [(1.0, None, 1.0, False), (0.25, None, 0.7, True), (1.0, 5.0, 1.0, False), (4.0, 30.0, 1.3, True)],
)
@pytest.mark.parametrize("words_at_once", [16, 4096])
def test_values_and_gradients_are_those_of_all_logits_at_once(
    monkeypatch, words_at_once, scale, cap, temperature, bias, uses_entropy
):
    monkeypatch.setattr(chunked_logprobs, "WORDS", words_at_once)
    found = []
    for way in (block_logprobs, at_once):
        layer, hidden, ids, weights = made(bias=bias)
        logprobs, entropies = way(Head(layer, scale, cap), hidden, ids, temperature)
        ((logprobs * weights[0]).sum() + uses_entropy * (entropies * weights[1]).sum()).backward()
        found.append((logprobs.detach(), entropies.detach(), hidden.grad, *(p.grad for p in layer.parameters())))
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_in_short_floats_the_heads_gradient_is_summed_in_float32():
    exact = []
    for dtype, way in ((torch.bfloat16, block_logprobs), (torch.bfloat16, at_once)):
        layer, hidden, ids, weights = made(dtype)
        (way(Head(layer), hidden, ids, 1.0)[0] * weights[0]).sum().backward()
        exact.append((hidden.grad.float(), layer.weight.grad.float()))
    for ours, theirs in zip(*exact, strict=True):
        assert (ours - theirs).norm() <= 0.01 * theirs.norm()


def test_a_frozen_head_gets_no_gradient():
    layer, hidden, ids, _ = made()
    layer.requires_grad_(False)
    block_logprobs(Head(layer), hidden, ids).logprobs.sum().backward()
    assert layer.weight.grad is None
    assert hidden.grad is not None


def test_an_output_layer_that_is_no_plain_matrix_is_refused():
    """An adapter's `weight` is that of the layer below it: its product would be without the adapter."""
    _, hidden, ids, _ = made()
    with pytest.raises(UsageError, match=r"is a Sequential.*leave it out of adapters' targets"):
        block_logprobs(Head(torch.nn.Sequential()), hidden, ids)


PEAK = """
import resource, sys, torch
from palaestra.agents.head import Head
from palaestra.trainers.losses.chunked_logprobs import block_logprobs
torch.set_num_threads(1)
layer = torch.nn.Linear(64, 151_936, bias=False)
hidden, ids = torch.randn(4096, 64, requires_grad=True), torch.randint(151_936, (4096,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if sys.argv[1] == "blocks":
    block_logprobs(Head(layer), hidden, ids).logprobs.sum().backward()
else:
    torch.nn.functional.cross_entropy(layer(hidden).float(), ids, reduction="sum").backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.prove
def test_the_peak_is_at_most_a_quarter_at_a_large_vocabulary():
    blocks, whole = (
        int(subprocess.run([sys.executable, "-c", PEAK, way], check=True, capture_output=True, text=True).stdout)
        for way in ("blocks", "whole")
    )
    assert blocks <= whole / 4, f"{blocks / 2**20:.2f} GiB by blocks, {whole / 2**20:.2f} GiB at once"
