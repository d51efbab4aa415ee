"""Log-probs are those of the model's own forward, whatever the model does to the logits of its output layer."""

import copy
import gc
import weakref

import families
import numpy as np
import pytest
import torch
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_outputs import CausalLMOutput

from palaestra import Request, Start, TokenRow, UsageError
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.head import Head, head_of
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.packing import pack_rows

VOCABULARY = 90
SIZE = {**families.SIZE, "vocab_size": VOCABULARY, "num_key_value_heads": 2, "eos_token_id": None}
FULL = {"head_dim": 8, "layer_types": ["full_attention", "full_attention"]}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": None}
OTHERS = {
    "granite": lambda: GraniteForCausalLM(GraniteConfig(logits_scaling=8.0, **SIZE)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SIZE)),
    "cohere2": lambda: Cohere2ForCausalLM(Cohere2Config(layer_types=FULL["layer_types"], **SIZE)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(final_logit_softcapping=2.0, **FULL, **SIZE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(final_logit_softcapping=2.0, **FULL, **SIZE)),
}
PLAIN = {
    "gemma3, no cap": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**FULL, **SIZE)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=12, tie_word_embeddings=False, **SIZE)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(num_local_experts=4, **SIZE)),
}


def build(name, large=True):
    """A model as it is made, in training mode, its weights so large that its choices differ."""
    torch.manual_seed(0)
    model = {**OTHERS, **PLAIN}[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if large and parameter.ndim == 2:
                parameter.mul_(6.0)
    return model.train()


def spoken(model, temperature=1.0):
    """Rows that the engine samples, with its log-probs."""
    engine = TorchEngine(model, (), slots=4)
    prompts = [[5 + row, 40, 7, 81][: 2 + row] for row in range(3)]
    for row, prompt in enumerate(prompts):
        engine.submit(Request(row, Start(0, row), 0, (), (), prompt, 20, temperature))
    done = []
    while len(done) < len(prompts):
        done += engine.poll()
    rows = []
    for prompt, said in zip(prompts, sorted(done, key=lambda completion: completion.ticket), strict=True):
        mask = np.arange(len(prompt) + 20) >= len(prompt)
        logprobs = np.array([0.0] * len(prompt) + said.logprobs, np.float32)
        rows.append(TokenRow(np.array(prompt + said.ids, np.int32), mask, logprobs, np.where(mask, 0, -1)))
    return rows


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", [*OTHERS, *PLAIN])
def test_engine_and_trainer_say_what_the_models_own_forward_says(name, temperature):
    model = build(name).eval()
    rows = spoken(model, temperature)
    batch = pack_rows(rows)
    with torch.no_grad():
        trained = token_logprobs(model, batch, temperature).logprobs_N[batch.sampled_N].numpy()
    own = np.concatenate([families.fresh_logprobs(model, row, temperature) for row in rows])
    np.testing.assert_allclose(np.concatenate([row.logprobs[row.sampled] for row in rows]), own, atol=2e-5)
    np.testing.assert_allclose(trained, own, atol=2e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_the_output_layer_alone_would_be_far_off(name):
    """So the test above compares something."""
    model = build(name).eval()
    ids = torch.arange(1, 60)[None]
    with torch.no_grad():
        alone = model.get_output_embeddings()(model.base_model(input_ids=ids).last_hidden_state)
        gap = (alone.log_softmax(-1) - model(input_ids=ids).logits.log_softmax(-1)).abs().max()
    assert gap > 0.3


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_head_is_the_output_layer_to_the_last_bit(name):
    model = build(name)
    hidden = torch.randn(3, 32)
    assert torch.equal(head_of(model)(hidden), model.get_output_embeddings()(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*OTHERS, *PLAIN])
def test_fresh_weights_and_short_floats_hide_nothing(name, dtype):
    """Logits near 0 hide a cap of 30, and rounding is 65,000 times as coarse in bfloat16."""
    model = build(name, large=False).to(dtype)
    if name.startswith("gemma") and name in OTHERS:
        model.config.final_logit_softcapping = 30.0
    expected = {"granite": (1 / 8, None), "cohere": (1 / 16, None), "cohere2": (1 / 16, None)}
    expected |= {"gemma2": (1.0, 30.0), "gemma3": (1.0, 30.0)}
    head = head_of(model)
    assert (head.scale, head.cap) == expected.get(name, (1.0, None))


def test_what_a_config_names_and_the_model_does_not_do_is_not_done():
    model = build("llama", large=False)
    model.config.logit_scale, model.config.final_logit_softcapping = "inv_sqrt_d_model", 30.0
    assert head_of(model) == Head(model.get_output_embeddings())


BATCH = pack_rows([families.token_row(3, [4], vocabulary=VOCABULARY)])


class Strange(LlamaForCausalLM):
    """Does something more, before or after its output layer."""

    def __init__(self, before=None, after=None):
        super().__init__(LlamaConfig(**SIZE))
        self.before, self.after = before, after

    def forward(self, *args, **kwargs):
        hidden = self.model(*args, **kwargs).last_hidden_state
        logits = self.lm_head(self.before(hidden) if self.before else hidden)
        return CausalLMOutput(logits=self.after(logits) if self.after else logits)


USES = {
    "engine": lambda model: TorchEngine(model, (), slots=1),
    "trainer": lambda model: token_logprobs(model, BATCH).logprobs_N,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"after": lambda logits: logits + 0.001}, "% from the output layer (parts"),
        ({"after": lambda logits: logits * 1.001}, "differs by 0.10% from the output layer (parts"),
        ({"after": lambda logits: torch.tanh(logits / 500) * 500}, "differs by 1.33% from the output layer (parts"),
        ({"after": lambda logits: logits[..., :-1]}, "gives logits [2, 8, 89], its output layer [2, 8, 90]"),
        ({"after": lambda logits: logits.index_fill(-1, torch.tensor([3]), -torch.inf)}, "not finite"),
        ({"before": lambda hidden: hidden / hidden.norm(dim=-1, keepdim=True)}, "differs by"),
    ],
)
def test_a_model_that_does_anything_else_is_refused(use, change, found):
    torch.manual_seed(0)
    with pytest.raises(UsageError) as caught:
        USES[use](Strange(**change))
    message = str(caught.value)
    assert message.startswith("log-probs of a Strange would be wrong here: its own forward ")
    assert found in message
    assert "logit_scale" in message
    assert "final_logit_softcapping" in message


def test_a_refusal_names_all_that_was_tried():
    model = Strange(after=lambda logits: logits / 3)
    model.config.logits_scaling = 2.0
    with pytest.raises(
        UsageError, match=r"by 50.00% from the output layer times 0.5, by 500.00% from .* times 2, by 200"
    ):
        head_of(model)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.001), (torch.bfloat16, 1.05), (torch.bfloat16, 2.0)])
def test_a_small_error_is_seen_in_every_precision(dtype, factor):
    with pytest.raises(UsageError, match="differs by"):
        head_of(Strange(after=lambda logits: logits * factor).to(dtype))


def test_a_model_without_an_output_layer_or_a_base_is_refused():
    class Bare(Strange):
        base_model_prefix = "nothing"

    with pytest.raises(UsageError, match="no last_hidden_state"):
        head_of(Bare())
    with pytest.raises(UsageError, match="no output layer"):
        head_of(LlamaModel(LlamaConfig(**SIZE)))


def test_looking_at_a_model_changes_nothing():
    """Neither random numbers, nor modes, nor gradients, nor hooks: a resumed run looks at other times."""
    model = build("gpt2")
    model.transformer.h[1].eval()
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    assert any(modes), "dropout is on"
    head_of(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("after", [lambda logits: logits + 1.0, lambda logits: logits.no_such_thing])
def test_nor_does_looking_at_one_that_is_refused_or_fails(after):
    model = Strange(after=after).train()
    with pytest.raises((UsageError, AttributeError)):
        head_of(model)
    assert all(module.training for module in model.modules())
    assert not model.lm_head._forward_pre_hooks


def test_a_model_is_looked_at_once_and_its_copy_too():
    model, passes = build("granite"), []
    model.register_forward_hook(lambda *_: passes.append(1))
    for _ in range(3):
        head_of(model)
        token_logprobs(model, BATCH)
    assert len(passes) == 1
    twin = copy.deepcopy(model)
    assert head_of(twin).layer is twin.lm_head
    assert head_of(twin).scale == 1 / 8
    assert len(passes) == 2


def test_a_model_that_was_looked_at_can_be_forgotten():
    model = build("llama")
    head_of(model)
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


def test_an_output_layer_that_was_exchanged_is_used():
    model = build("llama", large=False)
    head_of(model)
    model.lm_head = torch.nn.Linear(32, VOCABULARY, bias=False)
    assert head_of(model).layer is model.lm_head
