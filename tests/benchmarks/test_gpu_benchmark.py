"""`make bench-gpu` in miniature: what it counts is so, each part measures, and one that fails is lost alone."""

import json
import os
import sys

import pytest
import torch
from serving_vllm import stand_in

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
def test_every_part_measures_and_episodes_have_all_their_turns(run, script, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(stand_in(tmp_path / "package")), prepend=os.pathsep)
    status, record = run("attention", "learning", "offload", "engine", "--python", sys.executable)
    figures, work = record["figures"], script["SHAPES"]["tiny"].work
    assert status == 0 and not record["missing"]
    attention, step = figures["tiny attention"], figures["tiny engine"]
    for dtype, gap in script["ATTENTION_GAP"].items():
        assert all(0 < attention[f"{dtype}_depth_{depth}"] < gap for depth in range(3))
    assert attention["rows_share_prefixes"] is True
    assert 0 < figures["tiny learning"]["share_of_matrix_rate"] < 1
    assert figures["tiny offload"]["settings"]["optimizer_offload"]
    assert all(figures[f"tiny {part}"]["optimizer_steps"] == 1 for part in ("learning", "offload"))
    assert step["turns"] == work.turns > 2
    least, most = (work.prompts * work.group * work.turns * tokens for tokens in (1, work.turn_tokens))
    assert least < step["sampled_tokens"] < most, "lengths have a tail"
    assert step["play_seconds"] > (work.turns - 1) * work.wait_seconds
    assert step["engine_and_trainer_differ_by"] < script["LOGPROB_GAP"]
    assert all(figures[f"tiny {part}"]["predicted_bytes"] > 0 for part in ("learning", "offload", "engine"))


def test_what_cannot_be_measured_here_is_said_first_and_misses_no_target(run, capsys):
    status, record = run("engine", "--python", "/nowhere")
    assert capsys.readouterr().out.startswith("engine cannot be measured: there is no vLLM to start")
    assert status == 0 and "palaestra serve vllm MODEL" in record["missing"]["engine"]
    assert not record["targets"]


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
    counted_alone = counted.get_total_flops() - needless + 6 * norms * tokens
    assert shape.learning_flops(1, tokens, 0) == counted_alone
    for shared in (0, 32):  # One row has no other to share with, and two pay for what they share once.
        assert shape.learning_flops(1, tokens, shared) == counted_alone
        twice = 2 * counted_alone - shape.learning_flops(1, shared, 0)
        assert shape.learning_flops(2, tokens, shared) == twice


def test_a_part_that_fails_is_named_and_loses_no_other(run, change):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    change("attention", broken)
    _, record = run("attention", "learning")
    assert "illegal memory access" in record["missing"]["tiny attention"]
    assert record["figures"]["tiny learning"]["model_flops"] > 0


def test_on_a_gpu_targets_count_and_what_could_not_be_measured_has_missed_them(script):
    found = {
        "4B attention": {f"{dtype}_depth_{depth}": 1e-2 for dtype in script["ATTENTION_GAP"] for depth in range(3)},
        "4B learning": {"share_of_matrix_rate": 0.5, "peak_bytes": 100.0, "predicted_bytes": 105.0},
        "4B engine": {"engine_and_trainer_differ_by": 0.01, "peak_bytes": 100.0, "predicted_bytes": 89.0},
    }
    options = script["Options"]()
    story = script["Story"](options, script["Report"](options), torch.device("cuda"), 0.0, found, {"8-bit": "absent"})
    met = {one["name"].removeprefix("4B: "): one["met"] for one in script["judged"](story)}
    assert met == {
        "attention in bfloat16, off by": True,
        "attention in float32, off by": False,
        "rows share prefixes, 1 if so": False,
        "learning, model FLOPs by the matrix rate": True,
        "learning, memory predicted by measured, off by": True,
        "offload, memory predicted by measured, off by": False,
        "engine and trainer, mean difference of log-probs": True,
        "engine, memory predicted by measured, off by": False,
    }


def test_nothing_is_begun_when_the_time_is_over(run):
    _, record = run("learning", "--minutes", "0")
    assert set(record["missing"]) == {"device", "tiny learning"} and not record["figures"]


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
