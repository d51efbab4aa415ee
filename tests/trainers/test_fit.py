"""What fits into memory is chosen, and what does not is refused with numbers that would."""

import re

import families
import pytest

from palaestra import UsageError
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.scale import fit_memory as fitting
from palaestra.trainers.scale.available_memory import Room, gpu_room
from palaestra.trainers.scale.fit_memory import counted, fit, fits, fitted
from palaestra.trainers.scale.memory_estimate import estimate, outline
from palaestra.trainers.validation import changed

SMALL = families.stock_model("qwen3", 60).config


def a_run(**changes):
    return grpo_config("any", "grpo-tcr", **{"slots": 64, "max_episode_tokens": 1024, **changes})


def gpu(size):
    return Room(size, 2**40, True, "a GPU")


@pytest.mark.prove
def test_four_billion_parameters_are_trained_whole_on_32_gb_and_by_an_adapter_on_16():
    asked = grpo_config("any", "grpo-tcr", model="four-billion", max_episode_tokens=8192)
    assert (asked.play.num_prompts, asked.play.num_generations) == (64, 16)
    whole = fitted(asked, families.FOUR_BILLION, gpu_room(80)).config
    assert whole.scale.lora_r == 0
    assert whole.play.cache_tokens >= 16 * 8192, "a group is played side by side"
    assert fitted(asked, families.FOUR_BILLION, gpu_room(32)).config.scale.optimizer_offload
    assert fitted(changed(asked, {"lora_r": 32}), families.FOUR_BILLION, gpu_room(16)).config.scale.lora_r == 32
    with pytest.raises(UsageError, match=r"--scale.lora-r 32 would fit"):
        fitted(asked, families.FOUR_BILLION, gpu_room(16))


def test_what_is_chosen_takes_no_more_than_there_is_and_each_saving_comes_only_when_it_must():
    shape = outline(SMALL)
    full = estimate(shape, a_run(), on_gpu=True).total
    taken = []
    for share in (1.5, 0.3, 0.1, 0.06, 0.05):
        room = gpu(2**30 + round(share * (full - 2**30)))
        try:
            found = fitted(a_run(precision="float32"), SMALL, room)
        except UsageError:
            break
        assert found.estimate.total <= room.device
        assert found.estimate == estimate(shape, found.config, on_gpu=True)
        scale = found.config.scale
        taken.append([bool(scale.gradient_checkpointing), scale.optimizer_bits == 8, bool(scale.optimizer_offload)])
    assert taken[0] == [False, False, False]
    assert taken == sorted(taken), "a smaller room never has fewer savings"
    assert taken[-1][0], "the smallest that works needs checkpointing"


def test_what_was_asked_for_is_not_changed():
    asked = a_run(gradient_checkpointing=False, optimizer_bits=32, optimizer_offload=False, cache_tokens=5000)
    for size in range(1, 12):
        try:
            found = fitted(asked, SMALL, gpu(2**30 + size * 10_000_000)).config
        except UsageError:
            continue
        assert found.scale.gradient_checkpointing is False
        assert (found.scale.optimizer_bits, found.scale.optimizer_offload) == (32, False)
        assert found.play.cache_tokens == 5000
        break
    else:
        pytest.fail("nothing fitted")


@pytest.mark.parametrize("on_gpu", [False, True])
def test_the_numbers_of_a_refusal_would_fit(monkeypatch, tmp_path, on_gpu):
    SMALL.save_pretrained(tmp_path / "model")
    room = Room(2**30 * on_gpu + 4_000_000, 2**40, on_gpu)
    monkeypatch.setattr(fitting, "room_of", lambda device: room)
    asked = a_run(model=str(tmp_path / "model"), precision="float32", micro_batch_tokens=1024)
    with pytest.raises(UsageError, match=r"this run needs .*B") as refused:
        fit(asked, tmp_path)
    said = str(refused.value)
    if "--scale.fit True" in said:
        fit(changed(asked, {"fit": True}), tmp_path)
    else:
        longest = int(re.search(r"--play.max-episode-tokens (\d+) would fit", said)[1])
        fit(changed(asked, {"max_episode_tokens": longest, "fit": True}), tmp_path)


def test_a_disk_without_room_for_the_checkpoints_is_refused_before_anything_is_loaded(monkeypatch, tmp_path):
    SMALL.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(fitting, "free_disk", lambda folder: 1000)
    with pytest.raises(UsageError, match=r"the disk of .* has 1000 B free"):
        fit(a_run(model=str(tmp_path / "model")), tmp_path)


def test_a_cache_on_servers_takes_nothing_here_and_a_copy_in_another_process_does():
    shape = outline(SMALL)
    here, server, copy = (
        estimate(shape, changed(a_run(model="m"), engine))
        for engine in ({}, {"kind": "vllm", "urls": ("http://localhost:1",)}, {"kind": "process"})
    )
    assert server.playing == ()
    assert copy.total - here.total == shape.weight_bytes


def test_ranks_divide_what_learns_and_each_has_an_engine():
    shape = outline(SMALL)
    one, eight = (estimate(shape, a_run(model="m"), on_gpu=True, ranks=count) for count in (1, 8))
    size = {part.name: part.size for part in (*eight.persistent, *eight.learning)}
    assert size["weights"] == shape.weight_bytes, "of its engine"
    assert size["sharded weights"] == shape.parameters // 8 * 4
    assert size["gradients"] == shape.parameters * 4, "until they are summed, once a mini-batch"
    each_pass = estimate(shape, a_run(model="m", reduce_each_pass=True), on_gpu=True, ranks=8)
    assert {part.name: part.size for part in each_pass.learning}["gradients"] == shape.parameters // 8 * 4
    assert eight.playing == one.playing


@pytest.mark.prove
def test_on_a_cpu_the_optimizers_state_has_nowhere_else_to_be():
    chosen = []
    for size in range(18_000_000, 30_000_000, 50_000):
        try:
            chosen.append(fitted(a_run(model="m", fit=True), SMALL, Room(size, 0, False)).config.scale)
        except UsageError:
            continue
    assert any(scale.gradient_checkpointing for scale in chosen)
    assert not any(scale.optimizer_offload for scale in chosen)


def test_memory_of_unknown_size_holds_everything():
    assert fits(counted(a_run(), SMALL, Room(0, 0, False)).estimate, Room(0, 0, False))
