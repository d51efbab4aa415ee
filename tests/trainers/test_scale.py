"""A model in bfloat16, with small optimizer state, with checkpointed layers or an adapter learns as it should."""

import gc
import weakref
from dataclasses import replace

import families
import pytest
import torch
from batches import TOKENIZER, batch_of, restless, same, settings, spoken, weights
from families import random_agent
from going import on, run_of, step_folder, told
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from palaestra import ConfigError, TrainingHalted, UsageError
from palaestra.agents import Agent
from palaestra.agents.adapters import add_adapter
from palaestra.agents.local_model import cast_weights, load, serve
from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import Run, train
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update
from palaestra.trainers.run import checkpoint
from palaestra.trainers.run.memory_errors import naming_memory_settings
from palaestra.trainers.run.saved_config import read_config
from palaestra.trainers.scale import optimizer_offload
from palaestra.trainers.scale.moment_levels import narrowed, widened
from palaestra.trainers.setup import open_run
from palaestra.trainers.setup.open_run import as_opened, check_scale, open_model, settled
from palaestra.trainers.validation import changed


def model_of(dtype="float32", rank=0, seed=5):
    model = cast_weights(tiny_model(300, layers=2, seed=seed), dtype)
    if rank:
        add_adapter(model, rank, 2.0 * rank, ["all-linear"])
    return model


def learner_of(model, **changes):
    return Learner(Agent(families.Echo()), model, settings(**changes))


EPISODES = [families.an_episode(families.token_row(4 + n, [9, 3], seed=n, vocabulary=290)) for n in range(6)]


def descend(learner, times=1, rate=1.0, split=1):
    """Imitate some rows, in so many backward passes a step; returns the gradient norms."""
    norms = []
    for _ in range(times):
        for part in range(split):
            packed = pack(EPISODES[part::split], [1.0] * len(EPISODES[part::split]))
            with learner.computing():
                (-token_logprobs(learner.model, packed).logprobs_N.sum() / 72).backward()
        norms.append(learner.descend(rate))
    return norms


def test_small_steps_add_up_in_bfloat16_where_plain_weights_stand_still():
    model, plain = model_of("bfloat16"), model_of("bfloat16")
    before = weights(model)
    learner = learner_of(model, learning_rate=1e-6, weight_decay=0.0)
    masters = {name: weight.detach().clone() for name, weight in learner.masters.stepped.items()}
    stock = torch.optim.AdamW(plain.parameters(), 1e-6, betas=(0.9, 0.99), weight_decay=0.0)
    for _ in range(3):
        descend(learner)
        (-token_logprobs(plain, pack(EPISODES, [1.0] * 6)).logprobs_N.sum() / 72).backward()
        stock.step()
        stock.zero_grad()
    moved = [(learner.masters.stepped[name] != old).float().mean() for name, old in masters.items()]
    assert min(moved) > 0.3, "masters move, but where a token does not occur"
    large = before["model.layers.0.mlp.down_proj.weight"].abs() > 0.01
    stood = (plain.model.layers[0].mlp.down_proj.weight == before["model.layers.0.mlp.down_proj.weight"])[large]
    assert stood.float().mean() > 0.99
    for name, master in learner.masters.stepped.items():
        assert torch.equal(learner.masters.trained[name], master.bfloat16())
        assert master.dtype == torch.float32


def test_micro_batches_are_summed_in_float32():
    model, twin, expected = model_of("bfloat16"), model_of("bfloat16"), {}
    learner = learner_of(model)
    for episode in EPISODES:
        for one in (model, twin):
            (-token_logprobs(one, pack([episode], [1.0])).logprobs_N.sum() / 72).backward()
        for name, weight in twin.named_parameters():
            expected[name] = expected.get(name, 0) + weight.grad.float()
        twin.zero_grad()
    assert all(weight.grad is None for weight in model.parameters())
    learner.masters.take_gradients(learner.masters.stepped)
    assert same({name: master.grad for name, master in learner.masters.stepped.items()}, expected)


def test_in_float32_nothing_is_copied():
    model = model_of()
    learner = learner_of(model)
    assert learner.masters.copies == {}
    assert list(learner.masters.stepped.values()) == list(model.parameters())


def test_moments_in_8_bits_take_two_bytes_a_weight_and_learn_alike():
    wide, narrow = learner_of(model_of()), learner_of(model_of(), optimizer_bits=8)
    for learner in (wide, narrow):
        descend(learner, 10)
    sizes = [
        sum(value.nbytes for state in learner.optimizers[0].state.values() for kind, value in state.items()
            if torch.is_tensor(value) and "qmap" not in kind)
        for learner in (wide, narrow)
    ]  # fmt: skip
    count = sum(weight.numel() for weight in wide.model.parameters())
    assert sizes[0] / count == pytest.approx(8, abs=0.01)
    assert sizes[1] / count < 2.2
    start, one, other = (
        torch.cat([w.detach().flatten() for w in m.parameters()]) for m in (model_of(), wide.model, narrow.model)
    )
    assert 0 < (one - other).norm() < 0.2 * (one - start).norm()


@pytest.mark.parametrize("changes", [{}, {"optimizer_bits": 8}, {"algorithm": "muon"}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_that_waits_in_the_hosts_memory_changes_no_bit(dtype, changes, monkeypatch):
    monkeypatch.setattr(optimizer_offload, "BUCKET_WEIGHTS", 30_000)
    here, away = learner_of(model_of(dtype), **changes), learner_of(model_of(dtype), optimizer_offload=True, **changes)
    for rate in (1.0, 0.5, 0.25):
        assert descend(here, rate=rate, split=2) == descend(away, rate=rate, split=2)
        assert same(weights(here.model), weights(away.model))
    assert len(list(away._host.buckets())) > 2
    buffers = {buffer.data_ptr() for buffer in away._host._buffers.values()}
    waiting = [value for optimizer in away.optimizers for state in optimizer.state.values() for value in state.values()]
    waiting += list(away.masters.copies.values())
    waiting = [tensor for tensor in waiting if torch.is_tensor(tensor) and tensor.numel() >= 4096]
    assert len(waiting) > 10
    assert all(tensor.data_ptr() in buffers for tensor in waiting)


def test_state_on_the_host_of_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="there is no GPU"):
        check_scale(settings(optimizer_offload=True))


def test_an_engine_that_would_sample_on_the_cpu_is_refused_on_a_gpu(monkeypatch):
    check_scale(settings(kind="process"))
    monkeypatch.setattr(open_run, "find_device", lambda name: torch.device("cuda"))
    with pytest.raises(ConfigError, match="samples on the CPU: on a GPU use vllm"):
        check_scale(settings(kind="process"))


@pytest.mark.parametrize(("phase", "setting"), [("playing", "cache-tokens"), ("learning", "micro-batch-tokens")])
def test_a_gpu_without_memory_names_the_setting_to_lower(phase, setting):
    with pytest.raises(TrainingHalted, match=f"CUDA out of memory.*--[a-z]+.{setting}"), naming_memory_settings(phase):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_an_adapter_of_random_weights_that_are_kept_nowhere_is_refused():
    with pytest.raises(ConfigError, match="made anew"):
        check_scale(changed(SFTConfig(), {"lora_r": 4}))


def gradients(model, **changes):
    """Of one pass, and the bytes that were kept for its backward."""
    learner, kept = learner_of(model, **changes), {}
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with learner.computing(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = -token_logprobs(model, pack(EPISODES, [1.0] * 6)).logprobs_N.sum() / 72
        size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    loss.backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.requires_grad], size


@pytest.mark.parametrize("rank", [0, 4])
def test_checkpointed_layers_keep_little_and_give_the_same_gradients(rank):
    plain, much = gradients(model_of(rank=rank))
    checked, little = gradients(model_of(rank=rank), gradient_checkpointing=True)
    assert little < 0.45 * much
    assert all(torch.equal(one, other) for one, other in zip(plain, checked, strict=True))


def test_modes_are_put_back_after_an_error_and_no_part_of_a_layer_leaves_eval_mode():
    model = model_of()
    learner = learner_of(model, gradient_checkpointing=True)

    def stopped():
        with learner.computing():
            assert [type(m).__name__ for m in model.modules() if m.training] == ["Qwen3DecoderLayer"] * 2
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stopped()
    assert not any(module.training for module in model.modules())


def test_a_model_with_dropout_is_refused_where_layers_are_checkpointed():
    model = model_of()
    model.config.attention_dropout = 0.1
    learner_of(model)
    with pytest.raises(UsageError, match=r"attention_dropout is 0\.1"):
        learner_of(model, gradient_checkpointing=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_an_adapted_model_the_adapter_alone_learns(dtype):
    model = model_of(dtype, rank=4)
    before, learner = weights(model), learner_of(model, algorithm="muon", gradient_checkpointing=True)
    assert all(norm > 0 for norm in descend(learner, 2))
    after = weights(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".lora_" in name}
    assert all(weight.grad is None for weight in model.parameters())


def test_a_gradient_that_is_no_number_leaves_masters_and_weights_as_they_were():
    learner = learner_of(model_of("bfloat16"))
    descend(learner)
    before = weights(learner.model)
    (learner.model.lm_head.weight.sum() * float("nan")).backward()
    assert learner.descend(1.0) is None
    assert learner.skipped == 1
    assert same(before, weights(learner.model))
    assert descend(learner)[0] > 0
    assert learner.torn


def test_a_learner_and_its_optimizer_state_are_freed_without_the_garbage_collector():
    learner = Learner(Agent(families.Echo()), model_of(), SFTConfig(batch_rows=2))
    imitation = Imitation(learner, [row for episode in EPISODES for row in episode.rows])
    imitation.step()
    freed = [weakref.ref(learner.optimizers[0]), weakref.ref(learner.model)]
    gc.disable()
    try:
        del learner, imitation
        assert [reference() for reference in freed] == [None, None]
    finally:
        gc.enable()


def test_the_reference_of_an_adapted_model_is_its_base_and_no_second_model():
    model = restless()
    other = weights(model)
    episodes = spoken(model, [(0, [5, 3], 1.0), (0, [7], 0.0)])
    add_adapter(model, 4, 8.0, ["all-linear"])
    learner = learner_of(model, recipe="grpo-t", beta=0.1)
    batch = batch_of(episodes)
    first = score_batch(learner, batch)
    update(learner, batch, [1.0, -1.0], first)
    assert not same(other, weights(learner.model))
    assert all(
        (one == now).all() for one, now in zip(first.reference, score_batch(learner, batch).reference, strict=True)
    )
    assert learner.reference is learner.model


MODES = {
    "bfloat16": {"precision": "bfloat16", "gradient_checkpointing": True},
    "8 bits": {"precision": "bfloat16", "optimizer_bits": 8},
    "adapter": {"lora_r": 4, "recipe": "grpo-t", "beta": 0.1},
    "all": {"precision": "bfloat16", "optimizer_bits": 8, "lora_r": 16, "gradient_checkpointing": True},
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    return random_agent(tmp_path_factory.mktemp("agent"))


def kept(folder, step):
    """Every tensor of a checkpoint."""
    files = sorted(step_folder(folder, step).rglob("*.safetensors"))
    return {f"{file.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


@pytest.mark.parametrize(
    "mode", ["bfloat16", "all", *(pytest.param(mode, marks=pytest.mark.prove) for mode in ("8 bits", "adapter"))]
)
def test_a_run_that_stops_is_the_one_that_never_stopped_in_every_mode(agent, tmp_path, mode):
    config = run_of(agent, **{"steps": 2, "eval_tasks": 1, **MODES[mode]})
    on(tmp_path / "whole", config)
    on(tmp_path / "stopped", config, 1)
    on(tmp_path / "stopped")
    assert told(tmp_path / "stopped") == told(tmp_path / "whole")
    assert all(line["optimizer_steps"] > 0 for line in told(tmp_path / "whole")[0]), "nothing was learned"
    assert same(kept(tmp_path / "stopped", 2), kept(tmp_path / "whole", 2))
    assert not same(kept(tmp_path / "whole", 1), kept(tmp_path / "whole", 2))
    found, _ = checkpoint.newest(tmp_path / "whole" / "checkpoints")
    assert found.adapter.is_dir() != found.model.is_dir()
    assert found.adapter.is_dir() == ("lora_r" in MODES[mode])


def test_a_run_with_an_adapter_leaves_the_adapter_and_the_whole_model(agent, tmp_path):
    config = run_of(agent, steps=1, eval_tasks=1, lora_r=4, learning_rate=1e-2)
    with Run(tmp_path / "run", config) as run:
        list(train(run))
    whole = AutoModelForCausalLM.from_pretrained(run.model)
    by_adapter = load(str(run.adapter), slots=2, device="cpu").model
    start = open_model(str(agent), run_of(agent)).model
    moved = [not torch.equal(one, other) for one, other in zip(whole.parameters(), start.parameters(), strict=True)]
    assert sum(moved) == 14, "the matrices of both layers"
    assert all(
        torch.allclose(*pair, atol=1e-6) for pair in zip(whole.parameters(), by_adapter.parameters(), strict=True)
    )


def test_a_checkpoint_of_another_precision_state_or_base_is_refused(agent, tmp_path):
    config = run_of(agent, steps=1, optimizer_bits=8, lora_r=4)
    on(tmp_path / "run", config)
    found, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")

    def refused(said, base=agent, **changes):
        other = replace(config, scale=replace(config.scale, **changes))

        def restored():
            opened = checkpoint.open_saved(found, lambda name: open_model(name, other), str(base))
            checkpoint.restore(found, opened, other)

        with pytest.raises(UsageError, match=said):
            restored()

    refused("optimizer_bits was 8 and is 32", optimizer_bits=32)
    refused("lora_alpha was 32.0 and is 16.0", lora_alpha=16.0)
    refused("precision float32; as it is loaded now it has .*, bfloat16", precision="bfloat16")
    other = tiny_model(len(TOKENIZER), seed=11)
    export(other, TOKENIZER, tmp_path / "other")
    refused("of another base", base=tmp_path / "other")


def test_a_model_that_was_made_in_memory_is_as_one_that_was_loaded(agent):
    config = run_of(agent, **MODES["all"])
    made = as_opened(serve(restless(), TOKENIZER, slots=2), config, 2)
    loaded = open_model(str(agent), config)
    ids = torch.arange(1, 30)[None]
    with torch.no_grad():
        assert torch.equal(made.model(input_ids=ids).logits, loaded.model(input_ids=ids).logits)
    assert same(weights(made.model), weights(loaded.model))
    assert as_opened(loaded, config, 2) is loaded


def test_what_auto_stands_for_is_pinned_when_a_run_begins(agent, tmp_path):
    auto = run_of(agent, steps=1)
    on(tmp_path / "run", auto, steps=0)
    assert (auto.scale.precision, read_config(tmp_path / "run").scale.precision) == ("auto", "float32")
    with Run(tmp_path / "run", auto) as run:
        assert run.config.scale.precision == "float32"
    with pytest.raises(ConfigError, match=r"precision was 'float32' and is 'bfloat16'"):
        Run(tmp_path / "run", changed(auto, {"precision": "bfloat16"}))


@pytest.mark.prove
def test_imitation_in_every_mode_at_once_goes_on_where_it_stopped(agent, tmp_path):
    on(tmp_path / "played", run_of(agent, steps=1, eval_tasks=1, recorded_groups=4))
    config = changed(
        SFTConfig((str(tmp_path / "played"),), str(agent), epochs=2, batch_rows=8, device="cpu"), MODES["all"]
    )

    def imitated(folder, stop):
        with Run(folder, config) as run:
            for progress in train(run):
                if progress.metrics and progress.step == stop:
                    break

    for folder, stops in (("whole", [99]), ("stopped", [1, 99])):
        for stop in stops:
            imitated(tmp_path / folder, stop)
    last = checkpoint.last_step(tmp_path / "whole" / "checkpoints")
    assert last > 2
    assert same(kept(tmp_path / "stopped", last), kept(tmp_path / "whole", last))


def test_bfloat16_on_a_cpu_without_instructions_for_it_is_noted(agent, tmp_path, monkeypatch):
    monkeypatch.setattr(open_run, "has_bfloat16", lambda: False)
    monkeypatch.setattr(open_run, "is_x86", lambda: True)
    notes = {kind: settled(run_of(agent, precision=kind), tmp_path)[1] for kind in ("bfloat16", "float32", "auto")}
    assert "several times slower than --scale.precision float32" in notes["bfloat16"]
    assert notes["float32"] == notes["auto"] == ""
    monkeypatch.setattr(open_run, "has_bfloat16", lambda: True)
    assert settled(run_of(agent, precision="bfloat16"), tmp_path)[1] == ""


def test_moments_in_8_bits_are_the_same_levels_after_a_checkpoint_of_ranks():
    learner = learner_of(model_of(), optimizer_bits=8)
    descend(learner, 3)
    (optimizer,) = learner.optimizers
    for weight in learner.masters.stepped.values():
        state = optimizer.state[weight]
        again = narrowed(widened(state), weight)
        assert again.keys() == state.keys()
        for name, value in state.items():
            if name.startswith("state") and value.dtype == torch.uint8:
                assert torch.equal(again[name], value), name
            elif torch.is_tensor(value):
                assert torch.allclose(again[name], value, rtol=1e-6, atol=0), name
