"""Parts of a recipe that a user wrote: they train, are written by name, and are found again when the user allows it."""

import inspect
import json
import re
import sys
from contextlib import closing

import numpy as np
import pytest
import torch
from batches import local, rewarded, same, settings, weights
from families import random_agent
from going import on, run_of

from palaestra.cli import main
from palaestra.cli.train import parse
from palaestra.errors import ConfigError, PalaestraError, TrainingHalted, UsageError
from palaestra.trainers import imitate, parts
from palaestra.trainers.audit.advantage_checks import advantage_findings
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.config import part_protocols
from palaestra.trainers.grpo import train, train_learner
from palaestra.trainers.parts import UnloadedPart
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.saved_config import read_config
from palaestra.trainers.setup.open_learner import new_learner, open_learner
from palaestra.trainers.validation import changed, plain

MEDIAN = {"name": "own_module:Median", "trim": 0.5}
MODULE = """
from dataclasses import dataclass
from subprocess import Popen
import numpy as np
from palaestra.trainers.samplers.uniform import Uniform

@dataclass(frozen=True)
class Median:
    trim: float = 0.0
    def __call__(self, batch, scores):
        medians = {g: np.median(batch.rewards[batch.groups == g]) for g in batch.groups}
        return [reward - medians[g] for reward, g in zip(batch.rewards, batch.groups)]

def loss(logprobs_S, old_S, advantages_S, row_S):
    return -(logprobs_S - old_S).exp() * advantages_S

@dataclass(frozen=True)
class Clipped:
    high: float = 0.2
    def __call__(self, logprobs, old, advantages, rows):
        return -(logprobs - old).exp().clamp(max=1 + self.high) * advantages

def mean_loss(logprobs, old, advantages, rows):
    return -((logprobs - old).exp() * advantages).mean()

def sampler(env, task_count, groups, seed=0):
    return Uniform()(env, task_count, groups, seed)

def shaping(episode):
    return {"outcome": 2 * episode.reward - 1, "brief": -0.01 * episode.sampled_tokens}

async def judge(episode):
    return 0.1 * (episode.start.seed % 3), {"reason": "its seed"}

def patient_judge(episode):
    return episode.start.seed % 2

def correction(log_ratio_S, row_S):
    return np.minimum(np.exp(log_ratio_S), 2.0)

def k0(logprobs, reference):
    return (logprobs - reference).abs()

def by_root(lengths, longest):
    return [1 / (len(lengths) * max(1, length) ** 0.5) for length in lengths]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, in a folder from which Python imports."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "own_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("own_module", None)


@pytest.mark.parametrize(
    ("kind", "name", "more"),
    [
        ("advantage", "Median", {}),
        ("loss", "loss", {}),
        ("sampler", "sampler", {}),
        ("shaping", "shaping", {}),
        ("judge", "judge", {}),
        ("judge", "patient_judge", {}),
        ("correction", "correction", {}),
        ("kl_estimator", "k0", {"beta": 0.1}),
        ("aggregation", "by_root", {}),
    ],
)
def test_a_part_of_every_kind_trains_and_is_named_in_the_config(own, tmp_path, kind, name, more):
    config = run_of(random_agent(tmp_path / "agent"), eval_tasks=0, **more)
    config = changed(config, {kind: f"own_module:{name}"})
    on(tmp_path / "run", config, steps=1)
    content = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    written = (content["kl"] if kind == "kl_estimator" else content)[kind]
    assert written["name"] == f"own_module:{name}"
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["optimizer_steps"] >= 1 and np.isfinite(line["loss"])


def test_a_part_of_your_own_names_its_arguments_as_it_likes_and_its_settings_are_options(own):
    """A warning would fail this test."""
    config = parse(["two-hop", "--recipe.loss", "own_module:Clipped", "--recipe.loss.high", "0.3"], "train").config
    assert plain(config.recipe.loss) == {"high": 0.3}


def test_a_loss_of_your_own_that_says_nothing_of_clipping_has_no_figures_of_it(own, tmp_path):
    config = run_of(random_agent(tmp_path / "agent"), eval_tasks=0)
    for name, loss in (("told", config.recipe.loss), ("untold", "own_module:Clipped")):
        on(tmp_path / name, changed(config, {"loss": loss}), steps=1)
        line = json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1])
        assert any(metric.startswith("clip_ratio/") for metric in line) == (name == "told")


def test_a_loss_that_is_not_one_number_per_token_is_refused_before_the_weights_change(own, tmp_path):
    config = changed(run_of(random_agent(tmp_path / "agent"), eval_tasks=0), {"loss": "own_module:mean_loss"})
    with pytest.raises(ConfigError, match=r"the loss returned a tensor of shape \(\) for \d+ sampled tokens; return"):
        on(tmp_path / "run", config, steps=1)


def test_what_a_file_names_is_not_imported_until_the_user_allows_its_module(own, tmp_path):
    config = run_of(random_agent(tmp_path / "agent"), advantage=MEDIAN, eval_tasks=0)
    on(tmp_path / "run", config, steps=1)
    del sys.modules["own_module"]
    read = read_config(tmp_path / "run")
    assert isinstance(read.recipe.advantage, UnloadedPart) and "own_module" not in sys.modules
    assert plain(read.recipe) == plain(config.recipe)
    with pytest.raises(UsageError, match="add --allow-code own_module"):
        Run.reopened(tmp_path / "run")
    allowed = read_config(tmp_path / "run", ["own_module"])
    assert allowed.recipe.advantage.trim == 0.5


def test_a_file_reaches_no_code_beyond_the_module_that_is_allowed(own):
    """A loaded module, or what an allowed one imports, is not code that the user allowed."""
    load = parts.load_allowed(["own_module"])
    for name in ("os:system", "subprocess:Popen"):
        with pytest.raises(UsageError, match=f"--allow-code {name.partition(':')[0]}"):
            load(name, "advantage")(None, None)
    with pytest.raises(UsageError, match="defined in subprocess, which --allow-code does not name"):
        load("own_module:Popen", "advantage")


def test_the_run_of_a_part_is_resumed_by_whoever_has_it(own, tmp_path):
    config = run_of(random_agent(tmp_path / "agent"), advantage="own_module:Median", eval_tasks=0)
    on(tmp_path / "run", config, steps=2)
    with Run(tmp_path / "run", config) as run:
        assert open_learner(run).step == 2
        with closing(train(run)) as steps:
            assert next(steps).step == 3


def test_a_part_without_a_name_trains_but_makes_no_run(two_hop, tmp_path):
    def median(batch, scores):
        return [reward - np.median(batch.rewards) for reward in batch.rewards]

    config = settings(advantage=median)
    assert next(train_learner(new_learner(local(), config), two_hop)).step == 1
    with pytest.raises(ConfigError, match="has no name"):
        Run(tmp_path / "run", config)
    with Run(tmp_path / "run", settings()) as run:
        assert run.writes, "the folder stayed free"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"advantage": "leave-on-out"}, "did you mean 'leave-one-out'"),
        ({"advantage": parts.UnloadedPart}, "expected an instance"),
        ({"loss": 3}, "a function of your own"),
        ({"advantage": "own_module:Mean"}, "is not in"),
        ({"critic": "own_module:Median", "advantage": "gae"}, "expected head or none"),
        ({"advantage": {"name": "own_module:loss", "trim": 1}}, "has no settings"),
    ],
)
def test_what_cannot_be_a_part_is_refused_in_words(own, wrong, match):
    with pytest.raises(PalaestraError, match=match):
        settings(**wrong)


def test_a_part_that_cannot_be_called_as_its_kind_is_is_refused_where_it_is_loaded(own, capsys):
    (own / "wrong_module.py").write_text("def loss(logprobs, advantages):\n    return -logprobs * advantages\n")
    match = r"loss is loss\(logprobs, advantages\), .* expected the arguments \(logprobs_S, old_S, .*, row_S\)"
    with pytest.raises(ConfigError, match=match):
        settings(loss="wrong_module:loss")
    assert main(["train", "two-hop", "--recipe.loss", "wrong_module:loss"]) == 2
    assert re.search(match, " ".join(capsys.readouterr().err.split()))
    for free in (max, lambda *any_number: 0, lambda a, b, c, d, e=0: 0):
        settings(loss=free)


def test_the_arguments_that_a_part_is_refused_for_are_those_of_its_protocol():
    protocols = {f"{name}_part".replace("kl_estimator", "kl").replace("_", ""): name for name in parts.ARGUMENTS}
    found = {
        protocols[name.lower()]: tuple(inspect.signature(protocol.__call__).parameters)[1:]
        for name, protocol in vars(part_protocols).items()
        if name.endswith("Part")
    }
    assert found == parts.ARGUMENTS


class Reversed:
    ordered = True

    def __call__(self, batch, scores):
        return -batch.rewards


class Misprinted:
    def __call__(self, batch, scores):
        return 2 * batch.rewards

    def closed_form(self, batch, scores):
        return batch.rewards.copy()


def test_the_audit_holds_a_part_to_its_promise_and_to_no_more():
    batch, scores = rewarded([1.0, -1.0, 0.0, 1.0], [0, 0, 1, 1]), BatchScores()

    def findings(part):
        recipe = settings(advantage=part).recipe
        return [finding.details for finding in advantage_findings(recipe, batch, scores, part(batch, scores))]

    assert "not in order" in findings(Reversed())[0]
    assert "computed anew" in findings(Misprinted())[0]
    assert findings(lambda batch, scores: -batch.rewards) == []


def test_a_broken_promise_stops_the_run_before_it_learns(two_hop):
    learner = new_learner(local(), settings(advantage=Reversed()))
    before = weights(learner.model)
    with pytest.raises(TrainingHalted, match="not in order"):
        next(train_learner(learner, two_hop))
    assert same(before, weights(learner.model))


def test_a_caller_adds_metrics_and_steps_of_its_own_between_two_steps(tmp_path):
    config = run_of(random_agent(tmp_path / "agent"), eval_tasks=0)
    with Run(tmp_path / "run", config) as run:
        learner = open_learner(run)
        for step in train(run, learner=learner):
            before = weights(learner.model)
            rows = [row for episode, _ in step.rollouts for row in episode.rows if row.sampled.any()]
            step.metrics["imitation/loss"] = imitate(learner, rows)["loss"]
            assert not same(before, weights(learner.model))
            learner.rate_factor = 0.5
            if step.step == 2:
                break
        step = None
        lines = run.metrics
    assert [line["imitation/loss"] > 0 for line in lines] == [True, True]
    assert lines[1]["learning_rate"] == pytest.approx(0.5 * lines[0]["learning_rate"], rel=0.5)
    assert lines[1]["sampling/sampling_logp_difference/max"] < 1e-4, "the engine samples from the imitated weights"
    with Run.reopened(tmp_path / "run") as run:
        resumed = open_learner(run)
    assert resumed.step == 2 and same(weights(resumed.model), weights(learner.model))
    assert torch.isfinite(next(iter(resumed.model.parameters()))).all()
