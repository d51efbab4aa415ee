"""Each recipe gives the figures that it gave before: a change of the loop, of an advantage or of a loss shows here.

The figures are in golden_runs.json. A change that is meant to alter them writes them again with
`GOLDEN=write pytest tests/trainers/test_golden_runs.py -m prove`, and says in its commit which recipes changed and why.
"""

import json
import os
from collections import deque
from pathlib import Path

import gymnasium
import pytest
from batches import TOKENIZER, restless

import palaestra
from palaestra.agents.model_folder import export
from palaestra.envs import Task, ToolEnv
from palaestra.trainers import grpo
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.config.recipes import RECIPES
from palaestra.trainers.run.folder import Run

pytestmark = pytest.mark.prove
ENV_ID = "test/LengthParity-v0"
GOLDEN = Path(__file__).with_name("golden_runs.json")
NAMES = sorted(name for name, recipe in RECIPES.items() if recipe.judge is None)
SETTINGS = {
    "steps": 3,
    "num_prompts": 4,
    "num_generations": 4,
    "num_mini_batches": 2,
    "slots": 16,
    "max_turn_tokens": 30,
    "max_completion_length": 20,
    "device": "cpu",
    "eval_tasks": 8,
    "eval_steps": 2,
}
VARYING = ("time", "gap_", "logp_difference")


class LengthParity(ToolEnv):
    """Answer with an even number of characters: a random agent does so half the time."""

    def task(self, rng):
        return Task(f"Task {rng.integers(10**6)}: answer with an even number of characters.")

    def reward(self, attempt):
        return float(len(attempt.answer or "") % 2 == 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    palaestra.register(ENV_ID, f"{__name__}:LengthParity")
    folder = tmp_path_factory.mktemp("golden") / "model"
    export(restless(), TOKENIZER, folder)
    yield str(folder)
    gymnasium.registry.pop(ENV_ID)


def figures(recipe, model, folder):
    """All metrics of the steps, but times and the gap of rounding between engine and trainer."""
    with Run(folder, tiny_config(ENV_ID, recipe, model=model, **SETTINGS)) as run:
        deque(grpo.train(run), 0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in sorted(line) if not any(word in name for word in VARYING)} for line in lines]


@pytest.mark.parametrize("recipe", NAMES)
def test_a_recipe_gives_the_figures_that_it_gave_before(recipe, model, tmp_path):
    lines = figures(recipe, model, tmp_path / "run")
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("GOLDEN") == "write":
        entries = sorted({**golden, recipe: lines}.items())
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries)
        GOLDEN.write_text(f"{{\n{text}\n}}\n")
        return
    assert len(lines) == len(golden[recipe])
    for line, before in zip(lines, golden[recipe], strict=True):
        assert line == pytest.approx(before, rel=1e-3, abs=1e-6)
