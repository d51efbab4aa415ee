"""A pretrained model, SmolLM2-135M, imitates a guesser, and then learns by GRPO to use its tool."""

import json

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
