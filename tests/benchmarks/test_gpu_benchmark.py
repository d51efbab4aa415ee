"""`make bench-gpu` in miniature: what it counts is so, each part measures, and one that fails is lost alone."""

import json
import os

import pytest
import torch

from palaestra.trainers.scale.memory_estimate import outline

SCRIPT = "gpu.py"
TINY = ["--device", "cpu", "--shapes", "tiny", "--parts"]


@pytest.fixture
def run(script, tmp_path):
    """Its status and what it wrote."""

    def measure(*arguments):
        status = script["main"]([*TINY, *arguments, "--out", str(tmp_path / "found.json")])
        return status, json.loads((tmp_path / "found.json").read_text())

    return measure


@pytest.mark.prove
def test_every_part_measures_and_episodes_have_all_their_turns_and_tokens(run, script):
    status, record = run("generation", "learning", "step")
    figures = record["figures"]
    assert status == 0 and not record["missing"]
    assert 0 < figures["tiny generation"]["share_of_bandwidth_floor"] < 1
    assert 0 < figures["tiny learning"]["share_of_matrix_rate"] < 1
    assert figures["tiny learning"]["optimizer_steps"] == 1
    work, step = script["SHAPES"]["tiny"].work, figures["tiny step"]
    assert step["turns"] == work.turns > 2
    assert step["sampled_tokens"] == work.prompts * work.rollouts * work.turns * work.turn_tokens
    assert step["play_seconds"] > (work.turns - 1) * work.wait_seconds
    assert all(figures[f"tiny {part}"]["predicted_bytes"] > 0 for part in ("generation", "learning", "step"))


def test_parameters_and_flops_of_a_shape_are_those_of_the_model(script):
    from torch.utils.flop_counter import FlopCounterMode

    for shape in script["SHAPES"].values():
        assert outline(shape.config()).parameters == shape.parameters
    shape, tokens = script["SHAPES"]["tiny"], 96
    model = shape.build(torch.device("cpu"))
    model.set_attn_implementation("eager")  # The counter knows no other attention of a CPU.
    with FlopCounterMode(display=False) as counted:
        model(input_ids=torch.arange(tokens)[None]).logits.sum().backward()
    norms = shape.layers * (2 * shape.hidden + 2 * shape.head_dim) + shape.hidden
    needless = 6 * tokens**2 * shape.heads * shape.head_dim * shape.layers  # Pairs of tokens that are masked.
    assert shape.learning_flops(1, tokens) == counted.get_total_flops() - needless + 6 * norms * tokens


def test_a_part_that_fails_is_named_and_loses_no_other(run, change):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    change("generation", broken)
    _, record = run("generation", "learning")
    assert "illegal memory access" in record["missing"]["tiny generation"]
    assert record["figures"]["tiny learning"]["model_flops"] > 0


def test_on_a_gpu_targets_count_and_what_could_not_be_measured_has_missed_them(script):
    found = {
        "4B generation": {"share_of_bandwidth_floor": 0.7, "peak_bytes": 100.0, "predicted_bytes": 105.0},
        "4B step": {"sampled_tokens_per_second": 10.0, "peak_bytes": 100.0, "predicted_bytes": 89.0},
        "4B trl": {"sampled_tokens_per_second": 6.0},
    }
    options = script["Options"](shapes=("4B",))
    story = script["Story"](options, script["Report"](options), torch.device("cuda"), 0.0, found)
    met = {one["name"].removeprefix("4B: "): one["met"] for one in script["judged"](story)}
    assert met == {
        "decoding, time that memory needs by time taken": True,
        "learning, model FLOPs by the matrix rate": False,
        "a whole step, tokens a second by TRL's": False,
        "generation, memory predicted by measured, off by": True,
        "learning, memory predicted by measured, off by": False,
        "step, memory predicted by measured, off by": False,
    }


def test_nothing_is_begun_when_the_time_is_over(run):
    _, record = run("generation", "--minutes", "0")
    assert set(record["missing"]) == {"device", "tiny generation"} and not record["figures"]


@pytest.mark.prove
def test_a_part_in_a_process_of_its_own_may_die_hang_or_raise(load):
    load("gpu.py")
    from on_gpu.apart import Failed, apart

    assert apart(max, 3, 4, seconds=60) == 4
    with pytest.raises(Failed, match="status 7"):
        apart(os._exit, 7, seconds=60)
    with pytest.raises(Failed, match="no answer in 1 s"):
        apart(__import__("time").sleep, 100, seconds=1)
    with pytest.raises(Failed, match="ValueError"):
        apart(int, "x", seconds=60)
