"""Mixtures on the command line: trained from nothing, gone on with, measured, each environment as what it is."""

import json
import shutil

import pytest
from commands import refused, run, words

ENVIRONMENTS = '''
import palaestra
from palaestra.envs import Task, ToolEnv


class Yes(ToolEnv):
    """Say yes."""

    word = "yes"

    def task(self, rng):
        return Task(prompt=f"Say {self.word}, number {rng.integers(10**6)}.", answer=self.word)

    def reward(self, attempt):
        return float(attempt.answer == self.word)


class No(Yes):
    """Say no."""

    word = "no"


def play(messages, rng, tool_rate=1.0):
    asked = next(message["content"] for message in messages if message["role"] == "user")
    return asked.split()[1].rstrip(",")


palaestra.register("pair/Yes-v0", "pair:Yes", demonstrator="pair:play")
palaestra.register("pair/No-v0", "pair:No", demonstrator="pair:play")
'''
TINY = (
    *("--steps", 2, "--eval-tasks", 8, "--play.num-prompts", 4, "--play.num-generations", 4, "--play.slots", 16),
    *("--save.checkpoint-every", 1, "--device", "cpu", "--play.max-turn-tokens", 8),
    *("--cold-start.demonstrations", 60, "--cold-start.imitation-gate", 0.2, "--cold-start.layers", 1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two environments, where a mixture of them is trained."""
    made = tmp_path_factory.mktemp("mixture")
    (made / "pair.py").write_text(ENVIRONMENTS)
    return made


@pytest.fixture(autouse=True)
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture(scope="module")
def trained(folder):
    from palaestra.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        early = {"first-gate": 30, "gate-every": 15, "gate-episodes": 8, "imitation-decay": 2, "imitation-warmup": 5}
        options = [f"--cold-start.{name}={value}" for name, value in early.items()]
        arguments = ("train", "pair:pair/Yes-v0=3", "pair:pair/No-v0=1", "--run", "runs/mixed", *TINY, *options)
        assert main([*map(str, arguments)]) == 0
    return folder / "runs" / "mixed"


def test_a_tiny_agent_is_raised_and_trained_on_a_mixture(trained):
    summary = json.loads((trained / "summary.json").read_text())
    names = ["pair:pair/Yes-v0", "pair:pair/No-v0"]
    assert summary["env_id"] == "pair:pair/Yes-v0=3,pair:pair/No-v0=1"
    assert [summary["mixture"][env]["asked"] for env in names] == [0.75, 0.25]
    assert sum(shares["learned"] for shares in summary["mixture"].values()) == pytest.approx(1)
    assert [summary["after"]["greedy"]["environments"][env]["tasks"] for env in names] == [6, 2]


def test_a_mixture_that_was_killed_goes_on_to_the_same_end_and_with_no_other_weights(trained, tmp_path, capsys):
    stopped = tmp_path / "stopped"
    shutil.copytree(trained, stopped)
    shutil.rmtree(stopped / "checkpoints" / "step-000002")
    shutil.rmtree(stopped / "model")
    (stopped / "summary.json").unlink()
    refused(
        capsys, "env_id was 'pair:pair/Yes-v0=3,", "train", "pair:pair/Yes-v0=2,pair:pair/No-v0=1", "--resume", stopped
    )
    status, _, err = run(capsys, "train", "--resume", stopped)
    assert status == 0, err
    for name in ("model/model.safetensors", "checkpoints/step-000002/training.safetensors"):
        assert (stopped / name).read_bytes() == (trained / name).read_bytes()


def test_episodes_of_a_mixture_are_replayed_and_its_model_is_measured_by_environment(trained, capsys):
    for path in (trained / "episodes").glob("*.jsonl"):
        status, out, err = run(capsys, "replay", path)
        assert status == 0, out + err
    arguments = ("pair:pair/Yes-v0=1", "pair:pair/No-v0=1", "--model", trained / "model", "--tasks", 6)
    status, out, err = run(capsys, "eval", *arguments, "--save", "played.jsonl", "--json", "figures.json")
    assert status == 0, err
    assert "pair:pair/No-v0" in words(out)
    with open("figures.json") as file:
        figures = json.load(file)
    assert {env: own["tasks"] for env, own in figures["environments"].items()} == {
        "pair:pair/Yes-v0": 3,
        "pair:pair/No-v0": 3,
    }
    status, _, err = run(capsys, "eval", "pair:pair/Yes-v0,pair:pair/No-v0", "--tasks", 6)  # The scripts of both.
    assert status == 0, err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "two-hop=3", "nosuch=1"), "no environment is registered as 'nosuch'"),
        (("train", "two-hop=0", "calculator=1"), "two-hop has the weight '0'; expected a number above 0"),
        (("train", "two-hop=x", "calculator=1"), "weight 'x'"),
        (("train", "two-hop=3", "TwoHop-v0=1"), "palaestra/TwoHop-v0 is twice"),
        (("train", "two-hop=3", "solver-critic=1"), "is a game of the seats solver_0, critic_0"),
        (("train", "two-hop=1", "calculator=1", "--env.train-seats", "a"), "train_seats names 'a'"),
        (("train", "two-hop=3", "calculator=1", "--eval-tasks", "1"), "too few to measure a mixture"),
        (("train", "two-hop=3", "calculator=1", "--env-options", "calculator.digits=2"), "takes no option 'digits'"),
        (("train",), "name an environment"),
        (("play", "two-hop=3,calculator=1"), "is a mixture, which train, demo and eval take"),
        (("collect", "two-hop=3,calculator=1", "--out", "x.jsonl"), "is a mixture"),
    ],
)
def test_a_mixture_that_cannot_be_played_is_refused_before_anything_is_made(
    arguments, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    refused(capsys, said, *arguments)
    assert not list(tmp_path.iterdir())
