"""Padding, buckets and splits change the speed, not the result."""

import families
import numpy as np
import pytest
import torch
from batches import batch_of
from hypothesis import given
from hypothesis import strategies as st

from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.losses.policy import Clip
from palaestra.trainers.metrics import batch_metrics
from palaestra.trainers.packed import pack_rows

MODEL = tiny_model(40, layers=2, seed=5)
SHAPES = [(2, [3]), (30, [4, 4]), (3, [9, 2]), (5, [1]), (40, [20, 6, 2]), (2, [3]), (8, [8]), (9, [9])]
ROWS = [families.token_row(prompt, said, seed=n, logprob=-3.5) for n, (prompt, said) in enumerate(SHAPES)]
BATCH = pack_rows(ROWS, [(-1.0) ** n * (1 + n / 3) for n in range(len(ROWS))])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_are_those_of_each_row_alone(temperature):
    with torch.no_grad():
        found = token_logprobs(MODEL, BATCH, temperature)
    assert (found[~BATCH.sampled_N] == 0).all()
    for number, row in enumerate(ROWS):
        mine = found[(BATCH.row_N == number) & BATCH.sampled_N].numpy()
        np.testing.assert_allclose(mine, families.fresh_logprobs(MODEL, row, temperature), atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_log_probs_are_right_for_stock_models(name):
    model = families.stock_model(name, 40)
    with torch.no_grad():
        found = token_logprobs(model, BATCH)
    expected = np.concatenate([families.fresh_logprobs(model, row) for row in ROWS])
    np.testing.assert_allclose(found[BATCH.sampled_N].numpy(), expected, atol=2e-5)


def loss_and_gradient(max_tokens):
    model = tiny_model(40, layers=2, seed=5)
    total = 0.0
    for micro in micro_batches(BATCH, max_tokens):
        said, logprobs_N = micro.sampled_N, token_logprobs(model, micro)
        of_tokens = (logprobs_N, micro.sampled_logprobs_N, micro.advantages_N, micro.row_N)
        loss = (Clip()(*(values[said] for values in of_tokens)).loss_S * micro.weights_N[said]).sum()
        loss.backward()
        total += float(loss.detach())
    return total, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("max_tokens", [1, 40, 100, 300])
def test_the_split_into_micro_batches_changes_neither_loss_nor_gradient(max_tokens):
    loss, gradient = loss_and_gradient(100_000)
    other_loss, other = loss_and_gradient(max_tokens)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    assert float((other - gradient).norm() / gradient.norm()) < 1e-5


def test_tool_output_is_never_trained_on():
    """What the model says of tool results, and what stands after the last sampled token, changes nothing."""
    model = tiny_model(40, layers=2, seed=5)
    token_logprobs(model, BATCH)  # The first time the model's own forward runs as well.
    hidden = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0].shape))
    token_logprobs(model, BATCH)
    assert hidden == [(int(BATCH.sampled_N.sum()), 64)], "the head sees the places before sampled tokens, no others"
    row = ROWS[2]
    longer = type(row)(
        *(
            np.append(a, np.array(b, a.dtype))
            for a, b in ((row.ids, [7, 8]), (row.sampled, [0, 0]), (row.logprobs, [0, 0]), (row.versions, [-1, -1]))
        )
    )
    gradients = []
    for packed in (row, longer):
        model.zero_grad()
        token_logprobs(model, pack_rows([packed])).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 300))
def test_every_row_is_in_one_micro_batch_of_bounded_size(lengths, most):
    batch = pack_rows([families.token_row(1, [length]) for length in lengths])
    parts = micro_batches(batch, most)
    assert sorted(e for part in parts for e in part.episode_N.unique().tolist()) == list(range(len(lengths)))
    for part in parts:
        found = part.lengths
        assert len(found) == 1 or int(found.max()) * len(found) <= most
        assert int(found.max()) <= 1.35 * int(found.min())


def test_the_entropy_figure_is_the_mean_surprise_of_sampled_tokens_alone():
    uniform = families.token_row(9, [5, 5], logprob=-np.log(40))
    figures = batch_metrics(batch_of([families.an_episode(uniform)]))
    assert figures["entropy"] == pytest.approx(np.log(40), rel=1e-6)
