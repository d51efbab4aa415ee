"""Tasks that fit a model: exact edges, exact histograms, and samplers that play these tasks and no others."""

from dataclasses import replace
from fractions import Fraction

import families
import pytest

from palaestra import ConfigError, Task, UsageError
from palaestra.trainers.batch import Scored
from palaestra.trainers.data.curated import Curated, curated_tasks
from palaestra.trainers.data.curation import curate
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.posterior import Posterior
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.samplers.vspo import VSPO


def played(passed, samples=8, task=0, broken=0):
    """The episodes of a task that is solved so often."""
    rewards = [1.0] * passed + [0.0] * (samples - passed - broken) + [None] * broken
    made = [families.an_episode(reward=reward, task=task, seed=seed) for seed, reward in enumerate(rewards)]
    named = Task(f"question {task}", "Kemu", f"train/{task}")
    return [replace(one, attempt=replace(one.attempt, task=named)) for one in made]


def pool(**counts):
    """Eight episodes of so many tasks a bucket."""
    solved = {"hard": 2, "medium": 4, "easy": 7, "never": 0, "always": 8}
    kinds = [solved[name] for name, count in counts.items() for _ in range(count)]
    return [episode for task, passed in enumerate(kinds) for episode in played(passed, task=task)]


@pytest.mark.parametrize("samples", [2, 3, 4, 8, 12, 16])
def test_f22_sure_tasks_are_dropped_and_the_edges_are_exact(samples):
    for passed in range(samples + 1):
        found = curate(played(passed, samples), samples=samples)
        rate = Fraction(passed, samples)
        if rate in (0, 1):
            assert found.tasks == ()
            assert found.outcomes["always" if passed else "never"] == 1
            continue
        bucket = "hard" if rate <= Fraction(1, 4) else "easy" if rate >= Fraction(3, 4) else "medium"
        assert [one.bucket for one in found.tasks] == [bucket]
        assert found.outcomes[bucket] == sum(found.outcomes.values()) == 1


def test_f22_a_task_with_a_broken_episode_is_incomplete_until_that_is_played_again():
    whole, torn = played(3, task=0), played(3, task=1, broken=1)
    found = curate([*whole, *torn])
    assert [one.task for one in found.tasks] == [0]
    assert found.outcomes["incomplete"] == 1
    again = curate([*whole, *torn, torn[-1], replace(played(8, task=1)[0], start=torn[-1].start)])
    assert [(one.task, one.passed, one.scored) for one in again.tasks] == [(0, 3, 8), (1, 4, 8)]


def test_f22_the_choice_within_a_bucket_is_the_seeds():
    episodes, target = pool(hard=20, easy=4), {"hard": 1, "easy": 1}
    chosen = [[one.task for one in curate(episodes, target=target, seed=seed).tasks] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"hard": 1, "medium": 1, "easy": 1}, "33% of the tasks to be medium, and none of the 5"),
        ({"hard": 0, "easy": 0}, "nothing above 0"),
        ({"hard": -1, "easy": 1}, "hard=-1"),
        ({"hard": "1"}, "hard=1"),
        ({"tough": 1, "easy": 1}, "tough=1"),
        ({"hard": float("nan")}, "hard=nan"),
    ],
    ids=str,
)
def test_f22_a_target_that_cannot_be_met_is_refused(target, said):
    with pytest.raises(UsageError, match=said):
        curate(pool(hard=3, easy=2), target=target)


def test_f22_one_episode_a_task_tells_no_rate():
    with pytest.raises(ConfigError, match="every pass rate is 0 or 1"):
        curate(played(1, 1), samples=1)


# Played by samplers.


@pytest.mark.parametrize("options", [Uniform(), Uniform(epochs=True), Dynamic(), VSPO(), Posterior()], ids=repr)
def test_f22_every_sampler_plays_the_curated_tasks_alone_and_goes_on_with_them(options):
    tasks = (3, 1_000_000, 41, 17)
    groups = Groups(2, 2, tasks={"x/Y-v0": tasks})

    def batch(source):
        while (made := source.batch()) is None:
            start = source.next()
            success = float(start.seed % 2 or start.task == 17)
            episode = replace(families.an_episode(families.token_row(3, [2]), reward=success), start=start)
            source.observe(Scored(episode, {"outcome": success}))
        return made

    source = options("x/Y-v0", 4, groups, 0)
    made = [batch(source) for _ in range(6)]
    drawn = {scored.episode.start.task for one in made for scored in one.rollouts}
    assert drawn <= set(tasks)
    assert len(drawn) > 2
    again = options("x/Y-v0", 4, groups, 0)
    again.load(made[3].state)
    assert [batch(again).state for _ in range(2)] == [one.state for one in made[4:]]
    other = options("x/Y-v0", 4, replace(groups, tasks={"x/Y-v0": (3, 4, 5, 6)}), 0)
    with pytest.raises(UsageError, match="not what it was when this run began"):
        other.load(made[3].state)


def test_f22_a_curated_file_is_read_back_whole_and_damage_is_told(tmp_path):
    path = tmp_path / "fit.json"
    kept = curate(pool(hard=2, medium=1)).tasks
    Curated("x/Y-v0", "train", kept, {"model": "m", "samples": 8}).write(path)
    assert Curated.read(path) == Curated("x/Y-v0", "train", kept, {"model": "m", "samples": 8})
    assert curated_tasks([str(path)], "x/Y-v0") == {"x/Y-v0": (0, 1, 2)}
    text = path.read_text()
    for change, said in (
        (("curated tasks", "other"), "holds no curated tasks"),
        ((text, '{"prompt": "1 + 1?", "answer": "2"}\n' * 2), "holds no curated tasks"),
        (('"task": 1,', '"task": 0,'), "is damaged"),
        (('"passed"', '"past"'), "is damaged"),
        (('"split": "train"', '"split": "eval"'), "training plays train"),
    ):
        path.write_text(text.replace(*change))
        with pytest.raises(UsageError, match=said):
            curated_tasks([str(path)], "x/Y-v0")
