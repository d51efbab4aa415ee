"""A run of several environments: exact shares, tasks and what is known of them by environment, the same run again."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import families
import pytest
from batches import local, same, settings, weights
from families import random_agent
from going import on, run_of, state, told

import palaestra
from palaestra import Start, TrainingHalted, UsageError
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.mixture import environment_of, read_mixture
from palaestra.trainers import grpo
from palaestra.trainers.batch import Scored
from palaestra.trainers.config.env_config import EnvConfig
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.config.sections_config import ColdStartConfig
from palaestra.trainers.evaluation.during_training import evaluate_both
from palaestra.trainers.evaluation.evaluate import compare, evaluate
from palaestra.trainers.evaluation.metrics import mixture_metrics, mixture_shares
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.run.folder import Run
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.posterior import Posterior
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.samplers.vspo import VSPO
from palaestra.trainers.setup import cold_start

TWO_HOP, CALCULATOR = "palaestra/TwoHop-v0", "palaestra/Calculator-v0"
MIXED = f"{TWO_HOP}=3,{CALCULATOR}=1"


def played(sampler, solved=lambda start: start.seed % 2, batches=1):
    """The batches of a sampler whose episodes end as `solved` says."""
    found = []
    while len(found) < batches:
        start = sampler.next()
        if start is not None:
            success = float(solved(start))
            ended = replace(families.an_episode(families.token_row(3, [2]), reward=success), start=start)
            sampler.observe(Scored(ended, {"outcome": 2 * success - 1}))
        if (batch := sampler.batch()) is not None:
            found.append(batch)
    return found


def drawn(text, counts, seed=0, groups=1000, sampler=None):
    """The environment and the task of each of the first groups."""
    source = (sampler or Uniform())(text, counts, Groups(10, 2), seed)
    return [source.draw(group) for group in range(groups)]


def test_each_environment_of_a_mixture_plays_its_tasks_as_it_would_alone():
    mixed = drawn("a=3,b=1", {"a": 30, "b": 7}, groups=400, sampler=Uniform(epochs=True))
    for env, count in (("a", 30), ("b", 7)):
        own = [task for name, task in mixed if name == env]
        alone = [task for _, task in drawn(env, count, groups=400, sampler=Uniform(epochs=True))]
        assert own == alone[: len(own)]
        assert all(set(own[at : at + count]) == set(range(count)) for at in range(0, len(own) - count, count))


@pytest.mark.parametrize("kind", [Uniform(), Dynamic(), VSPO(), Posterior()])
def test_every_sampler_keeps_the_shares_and_goes_on_from_its_state(kind):
    def sampler():
        return kind("a=3,b=1", {"a": 60, "b": 13}, Groups(10, 4), 3)

    def solved(start):  # Of `a` a task is solved by half or never, of `b` the other way round.
        return start.seed % 2 and (start.task % 2 == (start.env == "a"))

    whole = sampler()
    batches = played(whole, solved, batches=12)
    groups = {one.episode.start.group: one.episode.start.env for batch in batches for one in batch.rollouts}
    assert Counter(groups[number] for number in range(100)) == {"a": 75, "b": 25}
    other = sampler()
    other.load(json.loads(json.dumps(batches[7].state)))
    for one, again in zip(played(other, solved, batches=4), batches[8:], strict=True):
        assert [scored.episode.start for scored in one.rollouts] == [scored.episode.start for scored in again.rollouts]
        assert (one.samples, one.state) == (again.samples, again.state)


def test_what_is_believed_of_a_task_is_believed_of_its_environment_alone():
    def sure_of_a(start):
        return start.env == "a" or start.seed % 2

    sampler = Posterior(exploring=0.0)("a=1,b=1", {"a": 12, "b": 12}, Groups(4, 4), 0)
    batches = played(sampler, sure_of_a, batches=12)
    known = batches[-1].state["known"]
    assert all(failed < 0.6 < solved for solved, failed in known["a"].values())
    assert all(failed > 1 for _, failed in known["b"].values())


def test_a_sampler_that_drops_groups_is_seen_to_change_the_mixture():
    mixture = read_mixture("a=3,b=1")

    def solved(start):  # No group of `b` has anything to compare, and a third of those of `a` has not.
        return start.env == "a" and start.task % 3 and start.seed % 2

    sampler = Dynamic()("a=3,b=1", {"a": 300, "b": 300}, Groups(50, 4), 0)
    lines = [mixture_metrics(mixture, batch) for batch in played(sampler, solved, batches=4)]
    shares = mixture_shares(lines)
    assert shares["b"] == {"asked": 0.25, "played": pytest.approx(0.25, abs=0.02), "learned": 0}
    assert shares["a"]["learned"] == 1
    assert lines[0]["mixture/b/success"] == 0 < lines[0]["mixture/a/success"]
    learned = []
    for damping in ("none", "geometric"):
        (batch,) = played(VSPO(damping=damping)("a=3,b=1", {"a": 300, "b": 300}, Groups(40, 4), 0), solved)
        learned.append(mixture_metrics(mixture, batch)["mixture/a/learned"])
    assert learned[0] == 160 > learned[1] > mixture_metrics(mixture, batch)["mixture/a/played"] / 2


def mixed(text=MIXED, **changes):
    return replace(settings(**changes), env=EnvConfig(text))


def trained(config):
    pupil = local()
    arena = palaestra.arena(config.env.env_id, 16, ordered=True)
    try:
        learner = Learner(pupil.agent, pupil.model, config)
        steps = list(grpo.train_learner(learner, arena))
    finally:
        arena.close()
    curve = [{k: v for k, v in step.metrics.items() if "time" not in k and "mixture" not in k} for step in steps]
    return curve, weights(pupil.model), [[one.start for one, _ in step.rollouts] for step in steps]


def test_a_mixture_of_one_environment_is_plain_training_bit_by_bit():
    plain, one = trained(settings()), trained(mixed(f"{TWO_HOP}=2"))
    assert plain[0] == one[0]
    assert plain[0][0]["optimizer_steps"] > 0
    assert same(plain[1], one[1])
    assert plain[2] == one[2]


def test_episodes_of_a_mixture_are_those_of_the_environments_that_their_starts_name():
    config = mixed(num_prompts=8)
    pupil = local()
    arena = palaestra.arena(MIXED, 6, ordered=True)
    (step, *_) = grpo.train_learner(Learner(pupil.agent, pupil.model, replace(config, steps=1)), arena)
    tools = {one.start.env: {tool["function"]["name"] for tool in one.tools} for one, _ in step.rollouts}
    assert tools == {TWO_HOP: {"search"}, CALCULATOR: {"calculator"}}
    alone = {env: palaestra.arena(env, 1) for env in tools}
    for one, _ in step.rollouts:
        alone[one.start.env].begin(0, Start(one.start.task, 0))
        (event,) = alone[one.start.env].recv()
        assert one.attempt.messages[: len(event.messages)] == event.messages
    for opened in (arena, *alone.values()):
        opened.close()


def test_a_mixture_goes_on_as_if_it_had_never_stopped(tmp_path):
    model = random_agent(tmp_path / "model")
    config = replace(run_of(model, "dapo", num_prompts=4, max_rounds=2), env=EnvConfig(MIXED))
    config = replace(config, recipe=replace(config.recipe, sampler=replace(config.recipe.sampler, compared="reward")))
    whole = on(tmp_path / "whole", config)
    on(tmp_path / "parts", config, steps=1)
    parts = on(tmp_path / "parts")
    assert same(weights(whole.model), weights(parts.model))
    assert told(tmp_path / "whole") == told(tmp_path / "parts")
    last = [tmp_path / name / "checkpoints" / "step-000004" for name in ("whole", "parts")]
    assert same(state(last[0]), state(last[1]))
    with pytest.raises(UsageError, match=r"env_id was .*=3,.* and is .*=2,"):
        Run(tmp_path / "parts", replace(config, env=EnvConfig(MIXED.replace("=3", "=2"))))


def by_rule(rate):
    rules = {env: palaestra.demonstrator(env) for env in (TWO_HOP, CALCULATOR)}
    return Agent(
        ScriptedPolicy(
            {env: lambda messages, rng, rule=rule: rule(messages, rng, **rate) for env, rule in rules.items()}
        )
    )


def test_an_evaluation_is_by_environment_and_of_all_weighted_as_the_mixture():
    arena = palaestra.arena(MIXED, 8, split="eval")
    report, episodes = evaluate(by_rule({"tool_rate": 0.5}), arena, tasks=40, samples=2)
    own = report.environments
    assert {env: figures["tasks"] for env, figures in own.items()} == {TWO_HOP: 30, CALCULATOR: 10}
    assert report.success == pytest.approx(0.75 * own[TWO_HOP]["success"] + 0.25 * own[CALCULATOR]["success"])
    assert len({one.start.key for one in episodes}) == len({one.start.seed for one in episodes}) == 80
    again, other = evaluate(by_rule({"tool_rate": 1.0}), arena, tasks=40, samples=2)
    assert compare(other, episodes).tasks == 40
    assert again.success > report.success
    with pytest.raises(UsageError, match=r"1 tasks are too few .*/Calculator-v0 has none"):
        evaluate(by_rule({}), arena, tasks=1)
    arena.close()


def test_where_one_environment_has_few_tasks_all_have_fewer_and_shares_stay(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"prompt": "What is {n} * 2?", "answer": "{2 * n}"}}\n' for n in range(12)))
    arena = palaestra.arena(MIXED, 8, **{"calculator.tasks": str(tasks)})
    few = arena.task_counts[CALCULATOR]
    assert 0 < few < 13
    report, _ = evaluate(by_rule({}), arena, tasks=100)
    assert {env: figures["tasks"] for env, figures in report.environments.items()} == {
        TWO_HOP: 3 * few,
        CALCULATOR: few,
    }
    arena.close()


def test_the_tiny_agent_is_shown_every_environment_by_its_share_and_knows_all_their_words():
    arena = palaestra.arena(MIXED, 16)
    rules = {env: palaestra.demonstrator(env) for env in (TWO_HOP, CALCULATOR)}
    shown = cold_start.demonstrate(arena, rules, 40, 1.0, seed=2)
    assert Counter(one.start.env for one in shown) == {TWO_HOP: 30, CALCULATOR: 10}
    assert all(one.parts["success"] == 1 for one in shown)
    poor = rules | {CALCULATOR: lambda messages, rng, tool_rate: "I do not know."}
    with pytest.raises(TrainingHalted, match="gate"):  # Of the environment that is least able.
        cold_start.cold_start(arena, poor, seed=0, limits=None, config=ColdStartConfig(demonstrations=40))
    arena.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=0,b=1", "a has the weight '0'; expected a number above 0"),
        ("a=-1,b=1", "weight '-1'"),
        ("a=1/0,b=1", "weight '1/0'"),
        ("a=1e999999999,b=1", "weight '1e999999999'"),
        ("a=1,b=", "b has the weight ''"),
        ("a=1,,b=1", "is no mixture"),
        ("a=1,a=2", "a is twice .* add its weights up"),
        ("a=1,b=100000", "a has a share of 1e-05"),
    ],
)
def test_a_mixture_that_cannot_be_played_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        tiny_config(text)


def test_options_are_those_of_all_or_of_one_environment_by_name():
    options = {"split": "eval", "two-hop.format": "tags", "Calculator-v0#hard.tasks": "x.jsonl"}
    text = f"{TWO_HOP},{CALCULATOR}#hard=1/2,{CALCULATOR}=0.5"
    mixture = read_mixture(text)
    mixture.check(options)
    assert mixture.weights[CALCULATOR] == Fraction(1, 2)
    assert environment_of(text, options, TWO_HOP) == (TWO_HOP, {"split": "eval", "format": "tags"})
    assert environment_of(text, options, f"{CALCULATOR}#hard") == (CALCULATOR, {"split": "eval", "tasks": "x.jsonl"})
    assert environment_of(text, options, CALCULATOR) == (CALCULATOR, {"split": "eval"})
    with pytest.raises(UsageError, match="twice with the same options"):
        mixture.check({})
    with pytest.raises(UsageError, match=r"'nobody.x' names 'nobody'"):
        mixture.check({"nobody.x": 1})
    with pytest.raises(UsageError, match="'split'"):
        EnvConfig(text, ("two-hop.split=eval",))
    with pytest.raises(UsageError, match="takes no option 'digits'"):
        palaestra.arena(MIXED, 2, **{"calculator.digits": 2})


def test_a_run_keeps_episodes_of_a_mixture_as_those_of_their_environments(tmp_path):
    from palaestra.record import read

    config = replace(run_of("tiny", eval_tasks=8), env=EnvConfig(MIXED, (f"{CALCULATOR}.format=tags",)))
    both = evaluate_both(by_rule({}), config)
    with Run(tmp_path, config) as run:
        run.keep("eval", [(one, ()) for one in both.sampled_episodes], "eval")
    found = {(record.env_id, tuple(record.options.items())) for record in read(tmp_path / "episodes" / "eval.jsonl")}
    assert found == {(TWO_HOP, (("split", "eval"),)), (CALCULATOR, (("split", "eval"), ("format", "tags")))}
    assert both.figures()["greedy"]["environments"].keys() == {TWO_HOP, CALCULATOR}
