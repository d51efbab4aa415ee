"""A pretrained model, SmolLM2-135M, imitates a guesser, and then learns by GRPO to use its tool. A run that is killed
between two optimizer steps of it ends with the same bits.
"""

import json
import signal
import subprocess
import sys

import pytest

from palaestra.cli import main

pytestmark = pytest.mark.prove
OPTIONS = {
    "--model": "smollm2",
    "--preset": "laptop",
    "--steps": 6,
    "--eval-tasks": 32,
    "--play.max-turn-tokens": 24,
    "--play.max-episode-tokens": 512,
    "--scale.lora-r": 16,
    "--optimizer.learning-rate": 5e-4,
    "--cold-start.demonstrations": 96,
    "--cold-start.imitation-gate": 0.3,
    "--cold-start.gate-episodes": 32,
    "--device": "cpu",
}


def test_grpo_makes_a_pretrained_guesser_use_its_tool(tmp_path):
    options = [f"{name}={value}" for name, value in OPTIONS.items()]
    assert main(["train", "two-hop", *options, "--env-options", "format=tags", "--run", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    before, after = summary["before"]["greedy"], summary["after"]["greedy"]
    assert before["tool_share"] < 0.2, "it has imitated the habit of guessing"
    assert after["tool_share"] > 0.8
    assert after["low"] > before["high"]


# Long answers cost reward, so that a model without demonstrations has something to learn.
SHORT = {
    "--model": "smollm2",
    "--preset": "laptop",
    "--steps": 2,
    "--eval-tasks": 0,
    "--play.num-prompts": 2,
    "--play.num-generations": 4,
    "--play.max-turn-tokens": 24,
    "--recipe.shaping.max-completion-length": 24,
    "--optimizer.num-mini-batches": 2,
    "--optimizer.learning-rate": 1e-3,
    "--scale.lora-r": 4,
    "--save.checkpoint-every": 1,
    "--device": "cpu",
}
# The third optimizer step is the first of two of the second step of the run.
KILLED = """
import os, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
from palaestra.cli import main
left = iter(range(2))
register_optimizer_step_post_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(left, None) is None else None)
sys.exit(main(sys.argv[1:]))
"""


def curve(folder):
    """Return the metrics of a run's steps without their times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "time" not in key} for line in lines]


def test_a_kill_in_the_middle_of_a_step_that_learns_changes_no_bit(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = ["train", "calculator", *(f"{name}={value}" for name, value in SHORT.items())]
    assert main([*command, "--run", str(whole)]) == 0
    done = subprocess.run([sys.executable, "-c", KILLED, *command, "--run", str(killed)], timeout=900, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in (killed / "checkpoints").iterdir()] == ["step-000001"]
    assert main(["train", "--resume", str(killed)]) == 0
    assert all(line["optimizer_steps"] == 2 for line in curve(whole)), "each step learned"
    assert curve(whole) == curve(killed)
    for name in ("adapter/adapter_model.safetensors", "checkpoints/step-000002/training.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()
