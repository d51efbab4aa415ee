"""An engine on a CPU samples with packed matrices, and what it samples is what the model itself would say."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from palaestra import Request, Start
from palaestra.agents.adapters import adapted, add_adapter
from palaestra.agents.engines import packed_layers
from palaestra.agents.engines.packed_layers import PackedLayers, packed_weights
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.errors import UsageError

IDS = list(range(3, 40))


@pytest.fixture(params=[False, True], ids=["tied", "untied with biases"])
def model(request, monkeypatch):
    monkeypatch.setattr(packed_layers, "_LEAST", 1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=not request.param,
        attention_bias=request.param,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def add_trained_adapter(model):
    model.name_or_path = "base"
    add_adapter(model, 4, 8.0, ["all-linear"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)


def sampled(engine, ids=IDS):
    engine.submit(Request(0, Start(0, 0), 0, (), (), ids, 12))
    while True:
        if done := engine.poll():
            return done[0].ids, torch.tensor(done[0].logprobs)


def model_logprobs(model, words, ids=IDS):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids + words])).logits[0]
    return torch.log_softmax(logits, -1)[len(ids) - 1 : -1].gather(1, torch.tensor(words)[:, None])[:, 0]


@pytest.mark.parametrize("with_adapter", [False, True])
def test_log_probs_are_those_of_the_plain_model(model, with_adapter):
    if with_adapter:
        add_trained_adapter(model)
    engine = TorchEngine(model, (), slots=1)
    words, logprobs = sampled(engine)
    assert engine._packed.bytes == 4 * packed_weights(model) > 0
    assert adapted(model) == with_adapter
    torch.testing.assert_close(logprobs, model_logprobs(model, words), atol=2e-5, rtol=0)


@pytest.mark.parametrize("with_adapter", [False, True])
def test_changed_weights_are_packed_anew_although_nobody_reports_them(model, with_adapter):
    if with_adapter:
        add_trained_adapter(model)
    engine = TorchEngine(model, (), slots=1)
    sampled(engine)
    with torch.no_grad():
        changed = [weight for name, weight in model.named_parameters() if not with_adapter or "lora_A" in name]
        for weight in changed:
            weight.mul_(1.3)
    others = IDS[::-1]  # Of these, no keys and values are cached.
    words, logprobs = sampled(engine, others)
    torch.testing.assert_close(logprobs, model_logprobs(model, words, others), atol=2e-5, rtol=0)


def test_bfloat16_is_used_for_play_alone(model):
    engine = TorchEngine(model, (), slots=1, precision="bfloat16")
    words, logprobs = sampled(engine)
    gap = (logprobs - model_logprobs(model, words)).abs()
    assert 1e-4 < gap.mean() < 0.1
    assert engine._packed.bytes == 2 * packed_weights(model)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_outside_of_play_the_model_is_as_it_was_and_has_gradients(model):
    engine = TorchEngine(model, (), slots=1)
    sampled(engine)
    assert not any("forward" in vars(module) for module in model.modules())
    model(input_ids=torch.tensor([IDS])).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    engine.release()
    assert engine._packed.bytes == 0


def test_a_small_model_is_not_packed_and_another_device_refuses_bfloat16(model, monkeypatch):
    monkeypatch.undo()
    assert packed_weights(model) == 0
    layers = PackedLayers(model)
    with layers.used():
        assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(UsageError, match="x86 CPU"):
        PackedLayers(model.to("meta"), "bfloat16")
