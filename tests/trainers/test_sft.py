"""Imitation learns what the assistant said, and nothing else."""

import families
import numpy as np
import pytest
import torch

from palaestra import ConfigError
from palaestra.agents.conversation import written_rows
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.sft import Imitation, SFTConfig

CHAT = families.chat("tiny")
TALKS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is the mayor of the city where {name} was born?"},
        {"role": "assistant", "content": '<tool_call>{"name": "search"}</tool_call>'},
        {"role": "tool", "name": "search", "content": reply},
        {"role": "assistant", "content": f"Answer: {reply}"},
    ]
    for name, reply in (("Bado", "Kemu"), ("Kemu", "391"), ("word", "reply"), ("Tila", "Bado"))
]
ROWS = [row for talk in TALKS for row in written_rows(CHAT, talk)]
CONFIG = SFTConfig(batch_rows=4)


def model():
    return tiny_model(len(CHAT.tokenizer), layers=2, seed=4)


def test_the_loss_is_the_mean_surprise_of_assistant_tokens():
    pupil = model()
    expected = -np.concatenate([families.fresh_logprobs(pupil, row) for row in ROWS]).mean()
    assert Imitation(pupil, ROWS, CONFIG, 0).step(rate=0.0) == pytest.approx(float(expected), rel=1e-5)


def test_only_assistant_tokens_are_imitated():
    said = "".join(CHAT.tokenizer.decode(row.ids[row.sampled].tolist()) for row in ROWS)
    for talk in TALKS:
        for message in talk:
            if message["role"] == "assistant":
                assert message["content"] + "<|end|>" in said
    assert "What is" not in said
    assert "Be brief" not in said
    assert "<|tool|>" not in said
    assert "<|assistant|>" not in said


def test_imitation_lowers_the_loss():
    imitation = Imitation(model(), ROWS, CONFIG, 0)
    losses = [imitation.step() for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    assert imitation.steps == 30


def test_the_split_into_micro_batches_changes_nothing():
    pupils = []
    for most in (1, 100_000):
        pupil = model()
        imitation = Imitation(pupil, ROWS, SFTConfig(batch_rows=4, micro_batch_tokens=most), 0)
        pupils.append((imitation.step(), imitation.step()))
    np.testing.assert_allclose(pupils[0], pupils[1], rtol=1e-4)


def test_the_same_seed_imitates_in_the_same_order_and_each_row_once_a_round():
    small = SFTConfig(batch_rows=1)

    def losses(seed):
        imitation = Imitation(model(), ROWS, small, seed)
        return [imitation.step(rate=0.0) for _ in range(8)]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)
    assert sorted(losses(0)[:4]) == sorted(losses(0)[4:])


def test_a_rate_of_zero_changes_nothing():
    pupil = model()
    before = [parameter.detach().clone() for parameter in pupil.parameters()]
    Imitation(pupil, ROWS, CONFIG, 0).step(rate=0.0)
    assert all(torch.equal(one, other) for one, other in zip(pupil.parameters(), before, strict=True))


def test_stock_models_can_imitate():
    """Biases, grouped heads, a head of its own."""
    for name in ("llama", "qwen2", "qwen3"):
        imitation = Imitation(families.stock_model(name, len(CHAT.tokenizer)), ROWS, CONFIG, 0)
        losses = [imitation.step() for _ in range(12)]
        assert losses[-1] < losses[0]


def test_nothing_to_imitate_is_refused():
    with pytest.raises(ConfigError, match="nothing to imitate"):
        Imitation(model(), [], CONFIG, 0)


@pytest.mark.parametrize(
    "change", [{"batch_rows": 0}, {"learning_rate": 0}, {"matrix_learning_rate": -1}, {"micro_batch_tokens": 0}]
)
def test_bad_values_are_refused(change):
    with pytest.raises(ConfigError):
        SFTConfig(**change)
