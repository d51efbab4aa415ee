"""What the tests with real packages of others share: a small random model, and a run of a training step.

`make test-interop` makes environments with the packages and sets PALAESTRA_INTEROP; without it these tests are skipped.
The packages are imported inside tests, so that files can be collected where they are missing.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path += [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "vllm"),
    str(Path(__file__).parents[1] / "cli"),
]

from lookup_world import ENV_ID
from small_model import make_model

import palaestra
from palaestra.envs.checks import trials
from palaestra.reading import RecordReader
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.training import train

POSITIONS = 8192
"""Room for the longest prompt, that of smolagents."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/interop" in str(item.path):
            item.add_marker(pytest.mark.interop)
            if not os.environ.get("PALAESTRA_INTEROP"):
                item.add_marker(pytest.mark.skip("`make test-interop` installs the packages and runs this"))


@pytest.fixture(scope="session", autouse=True)
def lookup_environment() -> None:
    palaestra.register(ENV_ID, "lookup_world:Lookup")


@pytest.fixture(autouse=True)
def few_cheats(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` plays each cheat four times, not for up to three seconds."""
    monkeypatch.setattr(trials, "CHEAT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random model."""
    folder = tmp_path_factory.mktemp("model")
    texts = ("I guess [7] or \\boxed{7}. The target number is higher than #### 12345",)
    make_model(folder, tied=True, texts=texts, positions=POSITIONS)
    return folder


@pytest.fixture
def train_a_step(model, tmp_path):
    """A function that trains one step on an environment, and returns the run's records."""

    def run(env_id, learner=model, turn_tokens=8, episode_tokens=700, must_learn=False, **options):
        config = grpo_config(
            env_id,
            model=str(learner),
            steps=1,
            num_prompts=4 if must_learn else 2,
            num_generations=8 if must_learn else 4,  # In a group of equal rewards nothing is learned.
            learning_rate=1e-3,
            max_turn_tokens=turn_tokens,
            max_episode_tokens=episode_tokens,
            max_completion_length=400,
            slots=8,
            eval_tasks=2,
            device="cpu",
            env_options=tuple(f"{name}={value}" for name, value in options.items()),
        )
        folder = tmp_path / "run"
        with Run.create(folder, config) as record:
            (step,) = train(record)
            gap = step.metrics.get("sampling/sampling_logp_difference/max")  # None where all rewards are the same.
            assert gap is None or gap < 1e-4, "tokens are those that were sampled"
            assert gap is not None or not must_learn
        return [record for _, record in RecordReader([folder], print)]

    return run
