"""The estimate of memory against memory: tensors that are counted, and peaks that a profiler saw."""

import gc
import json
from contextlib import nullcontext

import families
import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig, Qwen3MoeConfig, T5Config

from palaestra import UsageError
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.protocols import Request
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.scale.activation_checkpointing import checkpointed, prepare_checkpointing
from palaestra.trainers.scale.activation_count import activation_bytes, kept_bytes
from palaestra.trainers.scale.memory_estimate import estimate, outline

MODELS = ("llama", "qwen2", "qwen3")
SMALL = {"slots": 4, "num_prompts": 2, "num_generations": 2, "num_mini_batches": 1, "max_turn_tokens": 8}


def a_run(recipe="grpo-tcr", **changes):
    return grpo_config("any", recipe, **{**SMALL, **changes})


def sizes(counted):
    return {part.name: part.size for part in (*counted.persistent, *counted.playing, *counted.learning)}


def peak(work, folder):
    """The most bytes that were allocated at once while `work` ran, beyond those that were there before."""
    gc.collect()
    gc.disable()  # What an earlier test has left in circles would be freed in the middle, and taken off.
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            work()
    finally:
        gc.enable()
    seen.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    most = now = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


def long_row(length, vocabulary, seed=0):
    return families.token_row(8, [length - 8], vocabulary=vocabulary, seed=seed)


@pytest.mark.parametrize("name", MODELS)
def test_weights_gradients_and_optimizer_are_counted_to_the_byte(name):
    model = families.stock_model(name, 60)
    counted = sizes(estimate(outline(model.config), a_run(max_episode_tokens=64)))
    model(input_ids=torch.arange(8)[None]).logits.sum().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    state = [value for kept in optimizer.state.values() for value in kept.values() if value.ndim]
    assert counted["weights"] == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert counted["gradients"] == sum(weight.grad.nbytes for weight in model.parameters())
    assert counted["AdamW state"] == sum(value.nbytes for value in state)


def test_tied_embeddings_count_once():
    from palaestra.agents.policies.tiny import tiny_model

    model = tiny_model(100)
    assert outline(model.config).parameters == sum(weight.numel() for weight in model.parameters())


def test_a_reference_model_is_counted_only_where_the_recipe_has_one():
    shape = outline(families.stock_model("qwen3", 60).config)
    assert "reference model" not in sizes(estimate(shape, a_run(recipe="grpo-tcr", max_episode_tokens=64)))
    counted = sizes(estimate(shape, a_run(recipe="grpo-t", max_episode_tokens=64)))
    assert counted["reference model"] == counted["weights"]
    assert "reference model" in sizes(estimate(shape, a_run(beta=0.01, max_episode_tokens=64)))


def tensors_in(thing, seen):
    """Every tensor that an object of ours holds, however deep."""
    if id(thing) in seen or isinstance(thing, torch.nn.Module):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value, seen)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from tensors_in(value, seen)
    elif type(thing).__module__.startswith("palaestra."):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for value in (*vars(thing).values(),) if hasattr(thing, "__dict__") else (getattr(thing, s) for s in slots):
            yield from tensors_in(value, seen)


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_of_an_engine_whose_rows_are_full_is_what_was_estimated(name):
    slots, longest = 4, 240
    model = families.stock_model(name, 60)
    counted = sizes(estimate(outline(model.config), a_run(slots=slots, max_episode_tokens=longest)))
    engine = TorchEngine(model, (), slots=slots)
    for row in range(slots):
        ids = long_row(longest - 8, 60, seed=row).ids.tolist()
        engine.submit(Request(row, families.starts(1)[0], 0, (), (), ids, max_tokens=8))
    done = []
    while len(done) < slots:
        done += engine.poll()
    held = sum(tensor.nbytes for tensor in tensors_in(engine, set()) if tensor.ndim == 4)
    # The engine rounds rows up, and grows by doubling.
    assert counted["key-value cache"] <= held <= 1.3 * counted["key-value cache"]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(
    ("vocabulary", "rows", "length"),
    [(60, 4, 100), *(pytest.param(*size, marks=pytest.mark.prove) for size in ((60, 1, 400), (9000, 1, 200)))],
)
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_learning_is_within_a_tenth_of_the_estimate(name, vocabulary, rows, length, again, tmp_path):
    model = families.stock_model(name, vocabulary)
    batch = pack([families.an_episode(long_row(length, vocabulary, seed)) for seed in range(rows)], [1.0] * rows)
    token_logprobs(model, batch)  # The first pass looks whether the model can share beginnings.
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)

    def work():
        with checkpointed(model) if again else nullcontext():
            token_logprobs(model, batch).logprobs_N.sum().backward()

    if again:
        prepare_checkpointing(model)
    seen = peak(work, tmp_path)
    sizes_asked = {"micro_batch_tokens": rows * length, "max_episode_tokens": length, "num_prompts": rows}
    run = a_run(**sizes_asked, num_generations=2, gradient_checkpointing=again)
    counted = sizes(estimate(outline(model.config), run))
    assert 0.9 * seen <= counted["activations"] + counted["backward pass"] <= 1.1 * seen


def test_the_peak_of_drawing_a_token_is_near_the_estimate(tmp_path):
    vocabulary, slots = 20_000, 8
    model = families.stock_model("qwen3", vocabulary)
    engine = TorchEngine(model, (), slots=slots)
    for row in range(slots):
        engine.submit(Request(row, families.starts(1)[0], 0, (), (), [1, 2, 3], max_tokens=50))
    for _ in range(3):
        engine.poll()
    seen = peak(engine.poll, tmp_path)
    counted = sizes(estimate(outline(model.config), a_run(slots=slots, max_episode_tokens=64)))["sampling"]
    assert 0.5 * counted <= seen <= 1.1 * counted


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_reading_a_few_tokens_beside_full_rows_takes_the_copies_that_are_estimated(name, tmp_path):
    """Each layer's cache is gathered, and copied for heads that share keys: more than the new tokens take."""
    slots, longest = 8, 512
    model = families.stock_model(name, 60)
    engine = TorchEngine(model, (), slots=slots)
    rows = [long_row(longest - 32, 60, seed=row).ids.tolist() for row in range(slots)]

    def turn(row, ids):
        engine.submit(Request(row, families.starts(1)[0], 0, (), (), ids, max_tokens=2))

    done = []
    for row, ids in enumerate(rows):
        turn(row, ids)
    while len(done) < slots:
        done += engine.poll()
    ids_by_row = {completion.ticket: completion.ids for completion in done}
    turn(7, [*rows[7], *ids_by_row[7], *range(1, 17)])  # The cache grows here.
    while engine.busy:
        engine.poll()
    for row in (1, 3, 6):  # Not side by side.
        turn(row, [*rows[row], *ids_by_row[row], *range(1, 17)])
    seen, shape = peak(engine.poll, tmp_path), outline(model.config)
    copies = 3 * longest * shape.copied_token()
    assert copies <= seen <= 1.5 * copies
    wide, wider = (
        sizes(estimate(shape, a_run(slots=count, max_episode_tokens=longest)))["prefill"] for count in (64, 128)
    )
    assert wider - wide == 64 * longest * shape.copied_token()


def test_a_row_longer_than_a_micro_batch_stands_alone():
    shape = outline(families.stock_model("qwen3", 60).config)
    short = sizes(estimate(shape, a_run(micro_batch_tokens=100, max_episode_tokens=100)))
    long = sizes(estimate(shape, a_run(micro_batch_tokens=100, max_episode_tokens=300)))
    assert long["activations"] == 3 * short["activations"]


def test_playing_and_learning_take_turns():
    counted = estimate(outline(families.stock_model("qwen3", 60).config), a_run(max_episode_tokens=64))
    held, playing, learning = (
        sum(part.size for part in parts) for parts in (counted.persistent, counted.playing, counted.learning)
    )
    assert counted.total == held + max(playing, learning)


def test_a_model_of_four_billion_parameters_is_counted_without_its_memory(tmp_path):
    config = families.FOUR_BILLION
    shapes = []
    run = grpo_config("any")
    taken = peak(lambda: shapes.append((shape := outline(config), estimate(shape, run).total)), tmp_path)
    ((shape, total),) = shapes
    assert shape.parameters == 4_022_468_096  # As published: 4.02 billion.
    assert total > 16 * shape.parameters
    assert taken < 100 * 2**20


def test_what_experts_keep_for_the_backward_pass_is_counted():
    sizes_of_experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = Qwen3MoeConfig(vocab_size=60, **sizes_of_experts, **families.SIZE)
    counted, outside = activation_bytes(outline(config).model, 256)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="grouped_mm", attn_implementation="sdpa")
    layer, _ = kept_bytes(model, torch.randint(0, 60, (1, 256)))
    assert 0.9 * layer <= counted <= 1.1 * layer
    assert outside > 0


@pytest.mark.parametrize("config", [MambaConfig(num_hidden_layers=1), T5Config()], ids=["mamba", "t5"])
def test_models_that_the_engine_cannot_serve_are_refused(config):
    with pytest.raises(UsageError, match=r"attention heads|causal language model"):
        outline(config)


def test_counting_leaves_the_config_as_it_was():
    config = families.stock_model("qwen3", 60).config
    before = (config.to_dict(), config._attn_implementation)
    outline(config)
    assert (config.to_dict(), config._attn_implementation) == before
