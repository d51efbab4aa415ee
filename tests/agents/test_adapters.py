"""An adapter learns beside a base that never changes, and whoever needs whole weights gets the sum."""

import json

import families
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palaestra import UsageError
from palaestra.agents.adapters import (
    adapter_off,
    add_adapter,
    base_name,
    check_base,
    effective_weights,
    read_adapter,
    save_adapter,
)
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.local_model import load
from palaestra.agents.model_folder import export

TOKENIZER = families.TOKENIZERS["qwen2.5"]
IDS = torch.arange(3, 15)[None]


def base(name="qwen3", seed=0):
    return families.stock_model(name, len(TOKENIZER), seed=seed)


def moved(name="qwen3", dtype=torch.float32, targets=("all-linear",), base_from=None):
    """A model with an adapter that is far from nothing."""
    model = (base(name) if base_from is None else base_from).to(dtype)
    add_adapter(model, 4, 8.0, targets, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "lora_B" in weight_name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


@torch.no_grad()
def logits(model):
    return model(input_ids=IDS).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_the_adapter_off_the_model_is_the_base_exactly_and_learns_again_afterwards(dtype):
    model, other = moved(dtype=dtype), base().to(dtype)

    def stopped():
        with adapter_off(model) as reference:
            assert torch.equal(logits(reference), logits(other))
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert not torch.equal(logits(model), logits(other))
    learning = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert learning == [name for name, _ in model.named_parameters() if ".lora_" in name]


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_an_engine_with_weights_of_its_own_says_what_the_adapted_model_says(name):
    """Biases and untied heads among them; the trained base keeps its bits, however often it is published."""
    model, copy = moved(name), base(name, seed=9)
    before = {key: weight.clone() for key, weight in model.named_parameters()}
    engine = TorchEngine(copy, {0}, slots=2)
    for version in (1, 2, 3):
        engine.update_weights(effective_weights(model), version)
    row = families.token_row(3, [9, 4], seed=4)
    gap = families.fresh_logprobs(model, row) - families.fresh_logprobs(copy, row)
    assert abs(gap).max() < 2e-5
    assert all(torch.equal(weight, before[key]) for key, weight in model.named_parameters())


def test_an_adapter_of_bfloat16_is_summed_in_float32():
    model = moved(dtype=torch.bfloat16)
    sums = dict(effective_weights(model))
    layer = model.model.layers[0].mlp.up_proj
    delta = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float() * 2.0
    expected = (layer.base_layer.weight.float() + delta).bfloat16()
    assert torch.equal(sums["model.layers.0.mlp.up_proj.weight"], expected)
    assert {weight.dtype for weight in sums.values()} == {torch.bfloat16}
    assert sums.keys() == dict(base().named_parameters()).keys()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # What peft 0.21 asks.
def test_the_whole_model_is_exported_and_transformers_and_peft_read_what_was_written(tmp_path):
    start = tmp_path / "start"
    export(base(), TOKENIZER, start)
    model = moved(base_from=AutoModelForCausalLM.from_pretrained(start))
    export(model, TOKENIZER, tmp_path / "whole")
    save_adapter(model, TOKENIZER, tmp_path / "adapter")
    from peft import PeftModel

    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    beside = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(start), str(tmp_path / "adapter"))
    ours = load(str(tmp_path / "adapter"), slots=2, device="cpu").model
    for other in (stock, beside, ours):
        assert torch.allclose(logits(other), logits(model), atol=2e-5)
        assert not torch.allclose(logits(other), logits(base()), atol=1e-2)
    assert dict(ours.named_parameters()).keys() == dict(base().named_parameters()).keys()
    again = AutoModelForCausalLM.from_pretrained(start)
    add_adapter(again, 4, 8.0, ["all-linear"], seed=5)
    read_adapter(again, tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model))


def test_an_adapter_of_another_base_is_refused_in_one_sentence(tmp_path):
    start, other, adapter = tmp_path / "start", tmp_path / "other", tmp_path / "adapter"
    export(base(), TOKENIZER, start)
    save_adapter(moved(base_from=AutoModelForCausalLM.from_pretrained(start)), TOKENIZER, adapter)

    def refused(model, said):
        export(model, TOKENIZER, other)
        settings = json.loads((adapter / "adapter_config.json").read_text())
        content = {**settings, "base_model_name_or_path": str(other)}
        (adapter / "adapter_config.json").write_text(json.dumps(content))
        with pytest.raises(UsageError, match=said) as error:
            load(str(adapter), slots=2)
        assert "\n" not in str(error.value)

    refused(base(seed=3), "of another base: that of .* had the fingerprint")
    refused(base("llama"), r"of another base: for .*k_proj it has 24 outputs, and in this LlamaForCausalLM .* has 16")
    (adapter / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(UsageError, match="expected LORA"):
        base_name(adapter)
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be read"):
        check_base(base(), adapter)


def test_an_adapter_of_other_layers_or_of_none_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no adapter fits.*nowhere"):
        add_adapter(base(), 4, 8.0, ["nowhere"])
    model = moved(targets=["q_proj"])
    save_adapter(model, TOKENIZER, tmp_path)
    with pytest.raises(UsageError, match="other layers"):
        read_adapter(moved(targets=["q_proj", "v_proj"]), tmp_path)
    assert {name.split(".")[-3] for name in load_file(tmp_path / "adapter_model.safetensors")} == {"q_proj"}


def test_a_new_adapter_depends_on_its_seed_alone():
    one, other, third = (base() for _ in range(3))
    torch.manual_seed(0)
    add_adapter(one, 4, 8.0, ["all-linear"], seed=1)
    drawn = torch.rand(1)
    add_adapter(other, 4, 8.0, ["all-linear"], seed=1)
    add_adapter(third, 4, 8.0, ["all-linear"], seed=2)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn)

    def adapter(model):
        return torch.cat([weight.flatten() for name, weight in model.named_parameters() if "lora_A" in name])

    assert torch.equal(adapter(one), adapter(other))
    assert not torch.equal(adapter(one), adapter(third))
