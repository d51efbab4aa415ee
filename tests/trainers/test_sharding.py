"""What DeepSpeed cannot do here is refused before a run begins, and its share of memory is counted.

That it learns what one process learns is shown in `tests/deepspeed`, where it is installed.
"""

import families
import pytest
from going import run_of

from palaestra import ConfigError
from palaestra.errors import MissingExtra
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.scale import deepspeed_zero, fit_memory
from palaestra.trainers.scale.available_memory import Room
from palaestra.trainers.scale.memory_estimate import estimate, outline
from palaestra.trainers.setup.open_run import check_ranks, check_scale
from palaestra.trainers.validation import changed

ZERO, ULYSSES = {"sharding": "deepspeed"}, {"sequence_parallel_size": 2}


@pytest.fixture
def installed(monkeypatch):
    """A machine that has deepspeed."""
    monkeypatch.setattr(deepspeed_zero, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("changes", "ranks", "reason"),
    [
        (ULYSSES, 1, "sequence_parallel_size is 2, and the number of ranks must be divisible by it"),
        (ULYSSES, 3, "torchrun started 3"),
        (ULYSSES | {"recipe": "ppo"}, 2, "the recipe has a critic"),
        (ZERO | {"optimizer_bits": 8}, 2, "optimizer_bits is 8"),
        (ZERO | {"optimizer_offload": True}, 2, "optimizer_offload is True"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused_by_name(installed, changes, ranks, reason):
    with pytest.raises(ConfigError, match=reason):
        check_ranks(run_of("a-model", **changes), ranks)


@pytest.mark.parametrize("changes", [ZERO, ULYSSES, ZERO | {"lora_r": 8}, ZERO | {"recipe": "ppo"}])
def test_deepspeed_is_asked_for_where_ranks_need_it_and_nowhere_else(monkeypatch, installed, changes):
    config = run_of("a-model", **changes)
    check_ranks(config, 2)
    monkeypatch.setattr(deepspeed_zero, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"scale\..* needs deepspeed, .* pip install 'palaestra\[deepspeed\]'"):
        check_ranks(config, 2)
    check_ranks(run_of("a-model", **ZERO), 1)


def test_imitation_divides_no_rows():
    with pytest.raises(ConfigError, match="sequence_parallel_size is 2, and imitation"):
        check_scale(changed(SFTConfig(), ULYSSES))


def test_the_estimate_counts_what_deepspeed_keeps_and_that_ranks_share_a_row():
    shape = outline(families.stock_model("qwen3", 60).config)

    def parts(**changes):
        asked = grpo_config("any", "grpo-tcr", model="m", slots=64, max_episode_tokens=1024, **changes)
        found = estimate(shape, asked, on_gpu=True, ranks=8)
        return {part.name: part.size for part in (*found.persistent, *found.learning)}

    fsdp, zero, shared = parts(), parts(**ZERO), parts(**ULYSSES)
    assert zero["sharded weights"] == 2 * fsdp["sharded weights"], "the float32 masters are copies"
    assert zero["gradients"] == fsdp["gradients"] // 8, "they are summed in each pass"
    assert shared["activations"] == pytest.approx(fsdp["activations"] / 2, rel=0.01)


@pytest.mark.parametrize("changes", [{}, ZERO])
def test_nothing_is_chosen_that_deepspeed_cannot_do(monkeypatch, changes):
    monkeypatch.setattr(fit_memory, "find_spec", lambda name: name)
    asked = grpo_config("any", "grpo-tcr", model="m", slots=64, max_episode_tokens=1024, **changes)
    scales = [choice.scale for choice in fit_memory._choices(asked, Room(2**36, 2**40, True, "a GPU", ranks=8))]
    assert any(scale.gradient_checkpointing for scale in scales)
    for chosen in ("reduce_each_pass", "optimizer_offload"):
        assert any(getattr(scale, chosen) for scale in scales) == (not changes)
    assert any(scale.optimizer_bits == 8 for scale in scales) == (not changes)
