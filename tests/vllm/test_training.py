"""A GRPO run that samples from a vLLM server learns as one that samples from the built-in engine."""

import gc
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import palaestra
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.training import train

STEPS = 8
GAP = "sampling/sampling_logp_difference/max"


@pytest.fixture(scope="module", autouse=True)
def environment():
    palaestra.register("test/Vowels-v0", "vowels:Vowels")


def curve(folder, model, seed=0, steps=STEPS, **engine):
    config = grpo_config(
        "test/Vowels-v0",
        model=str(model),
        seed=seed,
        steps=steps,
        num_prompts=8,
        num_generations=16,
        learning_rate=2e-3,
        max_turn_tokens=16,
        max_episode_tokens=128,
        max_completion_length=128,
        slots=128,
        ordered=True,
        eval_tasks=4,
        device="cpu",
        engine=engine,
    )
    with Run.create(folder, config) as run:
        for _ in train(run):
            pass
        return np.array(run.curve), run.metrics


def test_the_curve_agrees_with_that_of_the_built_in_engine(tmp_path, models, server):
    own = [curve(tmp_path / f"torch-{seed}", models / "tied", seed)[0] for seed in (0, 1)]
    served, metrics = curve(tmp_path / "vllm", models / "tied", kind="vllm", urls=[server.url])
    assert max(line[GAP] for line in metrics if GAP in line) < 2e-5
    for one in (*own, served):
        assert one[-2:].mean() > one[:2].mean() + 0.2
    # Runs of the built-in engine with other seeds differ by 0.03 (standard deviation of four).
    assert abs(np.mean(own) - served.mean()) < 0.12


def test_a_run_starts_a_server_of_its_own_and_ends_it(tmp_path, models):
    processes = set(own_server_processes())
    _, metrics = curve(tmp_path / "own", models / "tied", steps=2, kind="vllm", python=os.environ["PALAESTRA_VLLM"])
    gaps = [line[GAP] for line in metrics if GAP in line]
    assert len(gaps) == 2
    assert max(gaps) < 2e-5
    gc.collect()
    until = time.monotonic() + 20
    while left := set(own_server_processes()) - processes:  # A killed process is listed until it has ended.
        assert time.monotonic() < until, left
        time.sleep(0.1)


def own_server_processes():
    """Yield the numbers of the processes of servers that runs have started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"/palaestra-vllm-" in (folder / "environ").read_bytes():
                yield folder.name
