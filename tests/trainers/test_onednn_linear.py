"""A learner on an x86 CPU multiplies by oneDNN: values and gradients are those of exact products."""

import families
import numpy as np
import pytest
import torch
from batches import batch_of, settings, spoken
from torch.nn.functional import linear

from palaestra.agents import Agent
from palaestra.agents.engines import packed_layers
from palaestra.agents.head import head_of
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.imitation import imitate
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.losses import chunked_logprobs, onednn_linear
from palaestra.trainers.losses.onednn_linear import fast_linear, linear_of

MODEL = tiny_model(40, layers=2, seed=5)
pytestmark = pytest.mark.skipif(not packed_layers.can_pack(MODEL), reason="torch has no oneDNN here")


@pytest.fixture
def products(monkeypatch):
    """The shapes of all products by oneDNN, which are made for small models too."""
    shapes, product = [], onednn_linear.onednn_product
    monkeypatch.setattr(packed_layers, "_LEAST", 1)
    counted = lambda *two: shapes.append([m.shape for m in two]) or product(*two)  # noqa: E731
    monkeypatch.setattr(onednn_linear, "onednn_product", counted)
    return shapes


def tensors(rows, *, bias, frozen):
    torch.manual_seed(0)
    shapes = [(*rows, 24), (40, 24), (40,)] if bias else [(*rows, 24), (40, 24)]
    return [torch.randn(shape).requires_grad_(place != 1 or not frozen) for place, shape in enumerate(shapes)]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [(5,), (1, 7), (2, 3, 4)])
def test_values_and_gradients_are_those_of_the_exact_product(products, rows, bias, frozen):
    fast, exact = (tensors(rows, bias=bias, frozen=frozen) for _ in range(2))
    value = onednn_linear._linear(*fast)
    expected = linear(*(each.double() for each in exact))
    torch.testing.assert_close(value, expected.float())
    for result in (value, expected):
        result.sum().backward()  # The gradient of a sum has no memory of its own.
    assert len(products) == 2 + (not frozen)
    for one, other in zip(fast, exact, strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.allclose(one.grad, other.grad, atol=1e-5)


def test_other_types_and_nothing_at_all_are_left_to_torch(products):
    for inputs in (torch.randn(3, 24).bfloat16(), torch.randn(3, 24).double(), torch.randn(0, 24)):
        assert onednn_linear._linear(inputs, torch.randn(40, 24).to(inputs.dtype)).shape == (len(inputs), 40)
    assert not products


def test_a_small_model_is_left_to_torch_and_a_large_one_is_afterwards(monkeypatch):
    with fast_linear(MODEL):
        assert linear_of(head_of(MODEL).layer) is linear
    monkeypatch.setattr(packed_layers, "_LEAST", 1)
    with fast_linear(MODEL):
        assert linear_of(head_of(MODEL).layer) is not linear
    assert linear_of(head_of(MODEL).layer) is linear and "forward" not in vars(head_of(MODEL).layer)


def test_gradients_added_in_place_over_two_passes_and_parts_of_the_vocabulary_are_those_of_torch(products, monkeypatch):
    model = tiny_model(40, layers=2, seed=5)
    batch = batch_of(spoken(model, [(0, [9], 1.0), (0, [4, 17, 33], 0.0)]))
    model.get_input_embeddings().padding_idx = int(batch.episodes[0].rows[0].ids[0])  # This token gets no gradient.
    packed = pack(batch.episodes, [0.0] * len(batch.episodes))

    def found():
        model.zero_grad()
        for _ in range(2):
            scores = token_logprobs(model, packed)
            (scores.logprobs_N.sum() + 0.5 * scores.entropies_N.sum()).backward()
        return [weight.grad.clone() for weight in model.parameters()]

    exact, adding = found(), onednn_linear.gradient_sum
    sums = []
    monkeypatch.setattr(onednn_linear, "gradient_sum", lambda owner: sums.append(owner) or adding(owner))
    monkeypatch.setattr(chunked_logprobs, "WORDS", 16)
    with fast_linear(model):
        fast = found()
    assert sums and all(owner is model.get_input_embeddings().weight for owner in sums)
    for one, other in zip(fast, exact, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_learner_uses_it_and_its_scores_before_an_update_are_those_in_the_update_bit_by_bit(
    products, checkpointing
):
    model = tiny_model(40, layers=2, seed=5)
    batch = batch_of(spoken(model, [(0, [9], 1.0), (0, [4], 0.0)]))
    config = settings("grpo-tcr", correction="truncated", num_mini_batches=1, gradient_checkpointing=checkpointing)
    learner = Learner(Agent(families.Echo()), model, config)
    before = score_batch(learner, batch).old
    assert products, "the scores are computed with it"
    packed = pack(batch.episodes, [0.0] * len(batch.episodes))
    products.clear()
    with learner.computing():
        now = token_logprobs(model, packed).logprobs_N
        forward = len(products)
        now.sum().backward()
    assert len(products) >= 3 * forward, "and so are both gradients of each product"
    assert np.array_equal(np.concatenate(before), now[packed.sampled_N].detach().numpy())
    products.clear()
    imitate(learner, [row for episode in batch.episodes for row in episode.rows], rate=0.0)
    assert products, "imitation too"
