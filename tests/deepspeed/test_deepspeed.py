"""Ranks that DeepSpeed shards learn what one process learns, and their checkpoints are those of any other.

The jobs are real: torchrun, two processes, gloo, the CPU, models of two layers. No GPU has met them.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import rank_step
import torch
from batches import same
from families import random_agent
from going import STEPS, on, run_of, step_folder, told
from rank_job import again
from safetensors.torch import load_file
from step_job import COUNT, SHARDINGS, ULYSSES, ZERO, alone
from step_job import STEPS as CASES
from test_ranks import TORCHRUN, job, state_of, weights

BF16 = {"precision": "bfloat16", "gradient_checkpointing": True}


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """What two ranks made of each case."""
    folder = tmp_path_factory.mktemp("figures")
    script = [*TORCHRUN, str(Path(__file__).with_name("step_job.py")), str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600)  # Against a hang alone.
    assert not done.returncode, done.stderr
    assert "compil" not in (said := done.stdout + done.stderr) and "deprecated" not in said
    return json.loads((folder / "figures.json").read_text())


@pytest.mark.parametrize("name", SHARDINGS)
def test_gradients_are_those_of_one_process(figures, name):
    """Over rows that begin alike, and whose tokens two ranks cannot halve."""
    logprobs, gradients = figures["gaps"][name]
    assert logprobs < 1e-5 and gradients < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_one_process_and_weights_have_their_names(figures, name, monkeypatch):
    """The first is the sign of a gradient, and where that is nearly 0 its last bits decide."""
    monkeypatch.setattr(rank_step, "CASES", {name: alone(name)})
    expected, expected_weights, *_ = rank_step.steps(name, count=COUNT)
    found, found_weights = figures["steps"][name]
    for key in {"grad_norm", "loss", "entropy/learned", "kl", "critic/loss"} & expected.keys():
        assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6)
    assert found_weights.keys() == expected_weights.keys()
    for key, weight in expected_weights.items():
        assert torch.allclose(torch.tensor(found_weights[key]), torch.tensor(weight), rtol=0, atol=1e-5), key


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs: by two ranks at once and in two parts, and of those that other shardings went on with."""
    root = tmp_path_factory.mktemp("runs")
    model = str(random_agent(root / "model"))
    on(root / "alone", run_of(model), STEPS)
    on(root / "alone-then-zero", run_of(model, **ZERO), 2)
    both, adapter, bf16 = ZERO | ULYSSES, ZERO | {"lora_r": 4}, ZERO | BF16
    status, said = job(
        *((root / name, model, changes, STEPS) for name, changes in (("whole", ZERO), ("both", both))),
        *((root / "whole-parts", model, ZERO, steps) for steps in (2, STEPS)),
        *((root / name, model, changes, 2) for name, changes in (("bf16", bf16), ("adapter", adapter))),
        *((root / "bf16-parts", model, bf16, steps) for steps in (1, 1)),
        *((root / "adapter-parts", model, adapter, steps) for steps in (1, 1)),
        (root / "alone-then-zero", model, ZERO, STEPS),
        (root / "bf16", model, BF16, 0),
        folder=root,
    )
    assert not status, said
    shutil.copytree(root / "bf16", root / "bf16-alone")
    again(root / "bf16-alone")
    return root


@pytest.mark.parametrize("name", ["whole", "both", "alone-then-zero"])
def test_a_run_with_deepspeed_is_that_of_one_process(runs, name):
    """The engine plays the same episodes, so it got the same weights under the same names after every step."""
    (lines, episodes), (expected, played) = told(runs / name), told(runs / "alone")
    assert episodes == played
    for mine, theirs in zip(lines, expected, strict=True):
        del mine["num_tokens/shared_ratio"], theirs["num_tokens/shared_ratio"]
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    ours, theirs = (weights(step_folder(runs / one, STEPS)) for one in (name, "alone"))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[key] - theirs[key]).abs().max()) for key in ours) < 1e-4


@pytest.mark.parametrize("name", ["whole", "bf16", "adapter"])
def test_a_run_that_stops_goes_on_bit_by_bit(runs, name):
    parts = runs / f"{name}-parts"
    assert told(parts) == told(runs / name)
    for step in range(1, len(told(parts)[0]) + 1):
        ours, theirs = (step_folder(folder, step) for folder in (parts, runs / name))
        for file in sorted(theirs.glob("*/*.safetensors")):
            assert same(load_file(ours / file.relative_to(theirs)), load_file(file))


def test_in_bfloat16_engines_answer_from_the_rounded_masters(runs):
    path = step_folder(runs / "bf16", 2)
    masters = {name.removeprefix("master/float32/"): one for name, one in state_of(path).items() if "master" in name}
    rounded = weights(path)
    assert rounded.keys() == masters.keys()
    assert all(torch.equal(rounded[name].flatten(), masters[name].bfloat16()) for name in rounded)
    assert any(not torch.equal(rounded[name].flatten().float(), masters[name]) for name in rounded)
    assert all(line["sampling/sampling_logp_difference/mean"] < 0.02 for line in told(runs / "bf16")[0])


@pytest.mark.parametrize("name", ["bf16", "bf16-alone"])
def test_another_sharding_goes_on_from_exactly_what_deepspeed_has_written(runs, name):
    """FSDP2 on two ranks, and one process."""
    there, taken_up = step_folder(runs / name, 2), step_folder(runs / f"{name}-again", 2)
    assert same(weights(taken_up), weights(there))
    ours, theirs = state_of(taken_up), state_of(there)
    assert ours.keys() == theirs.keys() and len(theirs) > 2 * len(weights(there))
    assert all(torch.equal(ours[key].flatten(), theirs[key].flatten()) for key in theirs)


def test_each_rank_holds_its_part_and_no_file_is_a_pickle(runs):
    folder = step_folder(runs / "bf16", 1)
    sizes = [file.stat().st_size for file in (folder / "training").iterdir()]
    assert len(sizes) == 2 and max(sizes) < 0.55 * sum(sizes)
    assert not [file for file in folder.rglob("*") if file.suffix in (".pt", ".bin", ".pkl")]
