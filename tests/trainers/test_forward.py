"""Common beginnings, splits, blocks and padding change the speed, not the result: gradients are those of padded rows
with all their logits."""

import copy
import json
from dataclasses import replace

import families
import numpy as np
import pytest
import torch
from batches import settings
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra import TokenRow
from palaestra.agents import Agent
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.learn import forward, prefix_attention
from palaestra.trainers.learn.attention_kernels import CPU_FLASH
from palaestra.trainers.learn.forward import attention_of, micro_batches, shares_beginnings, token_logprobs
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import pack_rows
from palaestra.trainers.setup.run_summary import synopsis
from palaestra.trainers.validation import changed

MODEL = tiny_model(40, layers=2, seed=5)
SHAPES = [(2, [3]), (30, [4, 4]), (3, [9, 2]), (5, [1]), (40, [20, 6, 2]), (2, [3]), (8, [8]), (9, [9])]
ROWS = [families.token_row(prompt, said, seed=n, logprob=-3.5) for n, (prompt, said) in enumerate(SHAPES)]
BATCH = pack_rows(ROWS, [(-1.0) ** n * (1 + n / 3) for n in range(len(ROWS))])
WORDS = 60
SIZE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def a_row(*stretches):
    """A row of (seed, tokens, whether they were sampled): the same seed and size give the same tokens."""
    ids = [np.random.default_rng(seed).integers(1, WORDS, size) for seed, size, _ in stretches]
    sampled = np.concatenate([np.full(size, said) for _, size, said in stretches])
    whole = np.concatenate(ids).astype(np.int32)
    return TokenRow(whole, sampled, np.where(sampled, -4.0, 0).astype(np.float32), np.where(sampled, 0, -1))


def group(prompt, size, *lengths):
    """Several answers to one prompt."""
    return [a_row((prompt, size, False), (100 * prompt + n, length, True)) for n, length in enumerate(lengths)]


TURNS = [(1, 40, False), (2, 30, True), (3, 9, False), (4, 12, True), (5, 8, False)]
CASES = {
    "one group": group(1, 40, 5, 9, 9, 1, 30),
    "many groups": [row for n in range(4) for row in group(n, 30 + n, 3, 7, 12)],
    "depth three": [
        a_row((1, 35, False), (prompt, 28, False), (50 + turn, 30, True), (900 + turn + last, 4 + last, True))
        for prompt in (2, 3)
        for turn in (prompt, 10 + prompt)
        for last in (0, 1, 2)
    ],
    "a row that is a prefix of another": [a_row(*TURNS[:2]), a_row(*TURNS), a_row(*TURNS), a_row(*TURNS[:4])],
    "several turns": [a_row(*TURNS), a_row(*TURNS[:3], (9, 25, True), (10, 3, False), (11, 3, True)), *ROWS[1:4]],
    "nothing in common": ROWS,
}


def a_model(kind=Qwen3ForCausalLM, config=Qwen3Config, **changes):
    torch.manual_seed(0)
    model = kind(config(**{**SIZE, "tie_word_embeddings": True, **changes}))
    with torch.no_grad():  # Fresh weights give every word about the same log-prob.
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim == 2 else 1)
    return model.eval()


def weighted(batch):
    """A weight a token, so that no two are alike."""
    return torch.linspace(0.5, 1.5, len(batch.ids_N)) * batch.sampled_N


def ours(model, batch, temperature=1.0, most=100_000):
    """Log-probs and gradients as the trainer computes them."""
    found, weights = torch.zeros(len(batch.ids_N)), weighted(batch)
    model.zero_grad()
    for micro in micro_batches(model, batch, most):
        scores = token_logprobs(model, micro, temperature)
        (scores.logprobs_N * weights[micro.origin_N]).sum().backward()
        found[micro.origin_N] = scores.logprobs_N.detach()
    return found, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def padded(model, batch, temperature=1.0):
    """The same by the model's own forward pass over padded rows, with all logits."""
    model.zero_grad()
    rows = [batch.ids_N[batch.row_N == n] for n in range(len(batch.lengths))]
    ids_RL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask_RL = torch.arange(ids_RL.shape[1]) < batch.lengths[:, None]
    logits_RLV = model(input_ids=ids_RL, attention_mask=mask_RL.long()).logits.float() / temperature
    said_RL = logits_RLV.log_softmax(-1)[:, :-1].gather(2, ids_RL[:, 1:, None])[:, :, 0]
    said_N = torch.nn.functional.pad(said_RL, (1, 0))[mask_RL] * batch.sampled_N
    (said_N * weighted(batch)).sum().backward()
    return said_N.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(found, expected, share=1e-5):
    np.testing.assert_allclose(found[0], expected[0], atol=share * 10)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).abs().max() <= share * gradient.abs().max(), name


@pytest.mark.parametrize("most", [100_000, 60])
@pytest.mark.parametrize("rows", CASES.values(), ids=CASES)
def test_gradients_are_those_of_padded_rows_with_all_logits(rows, most):
    """At most 60 tokens a part cut every group, so that its prompt is repeated."""
    model, batch = a_model(), pack_rows(rows)
    assert shares_beginnings(model)
    assert (len(micro_batches(model, batch, most)) > 1) == (most == 60)
    assert_equal(ours(model, batch, 0.7, most), padded(model, batch, 0.7))


def scaled(**changes):
    return a_model(GraniteForCausalLM, GraniteConfig, logits_scaling=8.0, **changes)


def capped():
    kinds = ["full_attention"] * 2
    return a_model(Gemma3ForCausalLM, Gemma3TextConfig, final_logit_softcapping=2.0, layer_types=kinds)


MODELS = {
    "an untied head": lambda: a_model(tie_word_embeddings=False),
    "scaled logits": scaled,
    "multiplied logits": lambda: a_model(CohereForCausalLM, CohereConfig, logit_scale=0.25),
    "capped logits": capped,
    "as many key heads": lambda: a_model(num_key_value_heads=4),
    "llama": lambda: families.stock_model("llama", WORDS).eval(),
    "qwen2": lambda: families.stock_model("qwen2", WORDS).eval(),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_so_they_are_for_every_head_and_family(make):
    model, batch = make(), pack_rows([*CASES["depth three"], *CASES["several turns"]])
    assert shares_beginnings(model)
    assert_equal(ours(model, batch), padded(model, batch))


def test_so_they_are_where_activations_are_checkpointed():
    """Layers run again in the backward pass, when the pass itself is long over: the plan must still be there."""
    model, batch = a_model(), pack_rows(CASES["depth three"])
    expected, passes = padded(model, batch), []
    ours(model, batch)  # Looks at the model first.
    assert shares_beginnings(model)
    model.activation_checkpointing_enable()
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True
        layer.self_attn.register_forward_hook(lambda *_: passes.append(1))
    assert_equal(ours(model, batch), expected)
    assert len(passes) == 2 * len(layers), "each layer ran twice"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_so_they_are_through_adapters():
    tuned = get_peft_model(a_model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:  # They begin as 0, and then nothing is adapted.
            torch.nn.init.normal_(parameter, std=0.1)
    model, batch = tuned.get_base_model(), pack_rows(CASES["depth three"])
    found = ours(model, batch)
    assert shares_beginnings(model)
    assert found[1] and all("lora_" in name for name in found[1])
    assert_equal(found, padded(model, batch))


def test_so_they_are_in_bfloat16_up_to_its_rounding():
    batch = pack_rows(CASES["depth three"])
    exact = padded(a_model().to(torch.bfloat16).float(), batch)
    gaps = []
    for way in (ours, padded):
        model = a_model().to(torch.bfloat16)
        _, gradients = way(model, batch)
        gaps.append(max(float((gradients[name].float() - g).norm() / g.norm()) for name, g in exact[1].items()))
        assert way is padded or shares_beginnings(model)
    assert gaps[0] <= 1.5 * gaps[1], "no farther from float32 than stock code is"


REFUSING = {
    "a capped attention": lambda: a_model(Gemma2ForCausalLM, Gemma2Config, query_pre_attn_scalar=8),
    "a window": lambda: a_model(MistralForCausalLM, MistralConfig, sliding_window=16),
    "a far window": lambda: a_model(MistralForCausalLM, MistralConfig, sliding_window=400),
    "an eager model": lambda: a_model(attn_implementation="eager"),
}


@pytest.mark.parametrize("make", REFUSING.values(), ids=REFUSING)
def test_a_model_that_cannot_share_gets_padded_rows_and_is_left_as_it_was(make, caplog):
    model, batch = make(), pack_rows(CASES["depth three"])
    before = model.config._attn_implementation
    expected = padded(model, batch)
    assert not shares_beginnings(model)
    assert model.config._attn_implementation == before
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("rows are padded and share no beginnings")
    assert attention_of(model) == f"{before} over padded rows"
    assert_equal(ours(model, batch, most=200), expected)


def test_a_run_says_which_kernel_it_learns_with():
    learner = Learner(Agent(families.Echo()), a_model(), settings())
    assert synopsis(learner).splitlines()[0].endswith("float32 on cpu; learns with flash attention on the CPU")


def test_a_run_says_how_many_held_out_tasks_there_are_when_there_are_fewer_than_its_config_names(tmp_path):
    sums = [{"prompt": f"{n} + 1?", "answer": str(n + 1), "split": "eval" if n % 2 else "train"} for n in range(80)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, sums)))
    options = {"env_id": "palaestra/Calculator-v0", "env_options": (f"tasks={tmp_path / 'sums.jsonl'}",)}

    def measured(tasks):
        learner = Learner(Agent(families.Echo()), a_model(), changed(settings(), {"eval_tasks": tasks, **options}))
        return synopsis(learner).splitlines()[-1].removeprefix("measured:").strip()

    assert measured(256) == "40 held-out tasks (eval_tasks is 256, and there are not as many), before and after"
    assert measured(8) == "8 held-out tasks, before and after"


def test_a_kernel_that_computes_wrong_costs_speed_and_says_so(monkeypatch, caplog):
    def forward(*arguments):
        out, lse = CPU_FLASH.forward(*arguments)
        return out * 1.01, lse

    wrong = replace(CPU_FLASH, forward=forward)
    monkeypatch.setattr(prefix_attention, "kernel_for", lambda *_: wrong)
    model = a_model()
    assert not shares_beginnings(model)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "rows are padded and share no beginnings, so learning is slower: its hidden states differ by"
    )
    monkeypatch.undo()
    assert_equal(ours(model, BATCH), padded(model, BATCH))


def test_a_model_in_which_neighbours_mix_outside_of_attention_does_not_share():
    """As convolutions and state spaces do; no keyword tells of them."""
    model = a_model()
    model.model.layers[0].mlp.register_forward_hook(
        lambda _, __, out: out + torch.nn.functional.pad(out, (0, 0, 1, 0))[:, :-1]
    )
    assert not shares_beginnings(model)
    assert_equal(ours(model, BATCH), padded(model, BATCH))


def test_an_attention_function_that_is_set_later_is_not_given_a_layout():
    model, batch = a_model(), pack_rows(CASES["depth three"])
    assert shares_beginnings(model)
    model.set_attn_implementation("sdpa")
    assert_equal(ours(model, batch), padded(model, batch))


def test_whoever_else_runs_the_model_notices_nothing():
    """Rows padded on the left, with a mask of two dimensions; and a file of it that any transformers reads."""
    model = a_model()
    ids, mask = torch.arange(1, 25).reshape(2, 12), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    before = model(input_ids=ids, attention_mask=mask).logits
    assert shares_beginnings(model)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    assert "palaestra" not in model.config.to_json_string()
    assert copy.deepcopy(model)(input_ids=ids).logits.shape == before.shape


def test_looking_at_a_model_leaves_its_modes_and_random_numbers():
    model = a_model(attention_dropout=0.5).train()
    model.model.layers[1].eval()
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    assert shares_beginnings(model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_shared_is_computed_once_and_nothing_behind_the_last_sampled_token():
    model, rows, seen = a_model(), group(1, 40, 5, 9), []
    token_logprobs(model, pack_rows(rows))  # Looks at the model first.
    model.model.register_forward_pre_hook(lambda _, __, asked: seen.append(asked["input_ids"].shape), with_kwargs=True)
    scores = token_logprobs(model, pack_rows(rows))
    assert seen == [(1, scores.computed)]
    assert scores.computed == 40 + 4 + 8


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 300))
def test_every_padded_row_is_in_one_micro_batch_of_bounded_size(lengths, most):
    parts = forward._buckets(lengths, most)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        found = [lengths[row] for row in part]
        assert len(found) == 1 or max(found) * len(found) <= most
        assert max(found) <= 1.35 * min(found)


def test_the_entropy_is_that_of_the_whole_distribution():
    with torch.no_grad():
        found = token_logprobs(MODEL, BATCH, 0.5).entropies_N[BATCH.row_N == 1]
        row = ROWS[1]
        logprobs = (MODEL(torch.from_numpy(row.ids).long()[None]).logits[0] / 0.5).log_softmax(-1)
    places = row.sampled.nonzero()[0]
    expected = -(logprobs.exp() * logprobs).sum(-1)[places - 1]
    torch.testing.assert_close(found[torch.from_numpy(places)], expected, rtol=1e-4, atol=1e-5)
