"""Samplers that choose: dynamic sampling, refill by value, and tasks drawn by what is believed of them."""

from collections import Counter

import numpy as np
import parrot
import pytest
from drawing import ended, mixed, of_rewards, opened, play
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from palaestra import ConfigError
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.evaluation.metrics import batch_metrics
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.posterior import Posterior, liveness
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.setup.open_run import check


@settings_of(max_examples=12)
@given(st.integers(0, 1000))
def test_f48_which_groups_are_kept_depends_on_no_timing(seed):
    first, other, rng = opened(Dynamic()), opened(Dynamic()), np.random.default_rng(seed)
    for _ in range(3):
        one, two = play(first, mixed)[0], play(other, mixed, shuffle=rng)[0]
        kept = [sorted({b.rollouts[s.place].episode.start.group for s in b.samples}) for b in (one, two)]
        assert kept[0] == kept[1]
        assert one.state == two.state


def test_success_is_that_of_all_that_was_played_and_not_of_what_is_kept():
    source = opened(Dynamic())
    batch, _ = play(source, lambda start: start.group % 4 == 0 and start.seed % 2)
    told = batch_metrics(batch)
    assert len(batch.samples) < len(batch.rollouts)
    played = [one.episode.parts["success"] for one in batch.rollouts]
    assert told["rewards/success/mean"] == pytest.approx(np.mean(played)) != pytest.approx(np.mean(batch.rewards > 0))


def test_a_group_that_is_given_up_is_not_played_on_and_costs_only_what_began():
    source, cheap = opened(Dynamic(), generations=8), opened(Dynamic(give_up=2), generations=8)
    _, whole = play(source, mixed)
    batch, begun = play(cheap, mixed)
    assert len({batch.rollouts[sample.place].episode.start.group for sample in batch.samples}) == 4
    assert len(batch.rollouts) < len(whole)
    assert batch.figures["sampler/given_up"] > 0
    late = next(start for start in begun if start.group % 3 == 0)
    assert not cheap.still_needed(late), "what still runs of it is not wanted after the batch either"


def test_a_bonus_makes_a_group_of_failures_differ_in_reward_and_not_in_success():
    def batch_of(compared):
        source = opened(Dynamic(compared=compared, max_rounds=1))
        while (start := source.next()) is not None:
            source.observe(ended(start, 0.0, reward=-1 + 0.1 * (start.seed % 2)))
        return source.batch()

    assert batch_of("success").samples == ()
    assert len(batch_of("reward").samples) == 16


def test_a_group_of_rewards_above_1_that_has_something_to_compare_is_not_taken_for_a_dead_one():
    """All succeed, and a judge tells them apart; or an environment pays more than it declares."""
    for declared in ((-1.0, 1.3), (-1.0, 1.0)):
        batch = of_rewards([(1.3, 1.2, 1.0, 1.1), (1.3, -1.0, -1.0, -1.0), (1.3, 1.3, 1.3, 1.3)], declared)
        assert batch.figures["sampler/dead_share"] == pytest.approx(1 / 3)
        assert {batch.rollouts[sample.place].episode.start.group for sample in batch.samples} == {0, 1}


def test_the_histogram_of_copies_counts_groups_by_how_often_they_were_copied():
    batch = of_rewards([(1.0, -1.0)] * 2 + [(1.0, 1.0)] * 6, max_copies=4, copy_gamma=1.0)
    groups = Counter(batch.rollouts[sample.place].episode.start.group for sample in batch.samples)
    copies = Counter(members // 2 - 1 for members in groups.values())
    figures = {name: value for name, value in batch.figures.items() if name.startswith("sampler/copied/")}
    assert figures == {f"sampler/copied/{times}": copies[times] for times in range(5)}
    assert sum(figures.values()) == 2 and batch.figures["sampler/copies"] == 6


def test_figures_of_rewards_are_of_each_episode_once_whatever_is_copied_or_left_out():
    batch = of_rewards([(1.0, -1.0), (-1.0, -1.0), (-1.0, -1.0), (0.5, 0.5)])
    assert len(batch.samples) == 8 and len({sample.place for sample in batch.samples}) == 2
    figures = batch_metrics(batch)
    assert figures["rewards/outcome/mean"] == figures["reward"] == pytest.approx((0 - 2 - 2 + 1) / 8)
    assert figures["rewards/success/mean"] == 0.5


def test_the_liveness_of_a_posterior_is_that_of_groups_drawn_from_it():
    rng = np.random.default_rng(0)
    known = np.array([[0.5, 0.5], [0.5, 8.5], [4.0, 5.0], [30.0, 0.5]])
    chances = rng.beta(known[:, 0], known[:, 1], size=(200_000, 4))
    solved = rng.binomial(8, chances)
    np.testing.assert_allclose(liveness(known, 8), ((solved > 0) & (solved < 8)).mean(0), atol=5e-3)


def test_what_is_known_of_a_task_fades_with_each_new_group_of_it():
    source = opened(Posterior(), prompts=1, generations=4, count=1)
    batch, _ = play(source, lambda start: True)
    assert batch.state["known"] == {"x/Y-v0": {"0": [4.5, 0.5]}}
    batch, _ = play(source, lambda start: False)
    (known,) = batch.state["known"]["x/Y-v0"].values()
    assert known == pytest.approx([0.5 + 0.9 * 4, 0.5 + 4])


def useful(options, rates, visits=10, seed=0):
    """Share of episodes in groups with something to compare, over so many visits a task on average."""
    source = opened(options, prompts=12, generations=8, count=len(rates), seed=seed)
    rng, live, all_groups = np.random.default_rng(seed), 0, 0
    while all_groups < visits * len(rates):
        batch, _ = play(source, lambda start: rng.random() < rates[start.task])
        groups = {}
        for scored in batch.rollouts:
            groups.setdefault(scored.episode.start.group, set()).add(scored.episode.parts["success"])
        live += sum(len(values) > 1 for values in groups.values())
        all_groups += len(groups)
    return live / all_groups


@pytest.mark.prove
def test_on_a_fixed_pool_sure_tasks_are_seldom_played_again():
    """96 tasks, a third never solved, a third always, a third between: against an oracle that knows every rate."""
    for seed in range(3):
        rng = np.random.default_rng([seed, 9])
        rates = rng.permutation(np.concatenate([np.zeros(32), np.ones(32), rng.uniform(0.2, 0.8, 32)]))
        plain, ours = useful(Uniform(), rates, seed=seed), useful(Posterior(), rates, seed=seed)
        between = rates[(rates > 0) & (rates < 1)]
        oracle = float(np.mean(1 - between**8 - (1 - between) ** 8))
        assert ours > 1.5 * plain
        assert ours > 0.85 * oracle, (plain, ours, oracle)


def test_a_set_too_large_to_be_met_twice_is_refused():
    with pytest.raises(ConfigError, match="10,000,000 tasks"):
        opened(Posterior(), count=10_000_000)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"recipe": "prs", "quality_part": "f1"}, "quality_part is 'f1'; expected a part of the reward: success"),
        ({"sampler": "posterior"}, "needs tasks to repeat"),
    ],
)
def test_what_an_environment_lacks_is_refused_before_a_run_begins(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        check(tiny_config(parrot.ENV, **changes))


def test_a_quality_that_one_environment_of_a_mixture_lacks_is_refused():
    with pytest.raises(ConfigError, match="quality_part is 'f1'"):
        check(tiny_config("palaestra/SearchQA-v0=1,palaestra/TwoHop-v0=1", "prs", quality_part="f1"))
