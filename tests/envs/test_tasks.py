"""Task sets: the index is the seed, no problem is in both splits, and a task holds all of its problem."""

import pytest

from palaestra import EnvironmentDefect, Task, UsageError
from palaestra.envs import ProceduralTasks, TextEnv, ToolEnv
from palaestra.envs.core.tasks import PROCEDURAL_LENGTH, split_of


def draw(rng):
    return Task(prompt=f"p{rng.integers(300)}", answer=rng.integers(9))


def test_the_index_decides_the_problem():
    first, second = ProceduralTasks(draw, "A"), ProceduralTasks(draw, "A")
    assert [first[i] for i in range(20)] == [second[i] for i in reversed(range(20))][::-1]
    assert [first[i].prompt for i in range(20)] != [ProceduralTasks(draw, "B")[i].prompt for i in range(20)]
    assert first[-1] == first[PROCEDURAL_LENGTH - 1]
    assert first[3:5] == [first[3], first[4]]
    assert first[7].id == "train/7"
    with pytest.raises(IndexError):
        first[PROCEDURAL_LENGTH]
    with pytest.raises(UsageError, match="'train' or 'eval'"):
        ProceduralTasks(draw, "A", "test")


def test_an_author_may_split_the_generator():
    def split(rng):
        first, second = rng.spawn(2)
        third = rng.spawn(1)[0]
        return Task(prompt=" ".join(str(one.integers(10**9)) for one in (rng, first, second, third)))

    drawn = ProceduralTasks(split, "A")[3].prompt
    assert drawn == ProceduralTasks(split, "A")[3].prompt
    assert len(set(drawn.split())) == 4


def test_splits_share_no_problem_and_cover_all():
    train = {ProceduralTasks(draw, "A", "train")[i].prompt for i in range(3000)}
    evaluation = {ProceduralTasks(draw, "A", "eval")[i].prompt for i in range(1000)}
    assert not train & evaluation
    assert len(train | evaluation) == 300
    assert 0.1 < len(evaluation) / 300 < 0.3
    assert all(split_of(prompt) == "eval" for prompt in evaluation)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [(Task(prompt="only one"), "more different prompts"), ("text", "expected a Task"), (Task(prompt=""), "non-empty")],
)
def test_defects_are_explained(drawn, said):
    split = "eval" if split_of("only one") == "train" else "train"
    with pytest.raises(EnvironmentDefect, match=said):
        ProceduralTasks(lambda rng: drawn, "A", split)[0]


class Forgetful(ToolEnv):
    """Keeps a problem on itself."""

    def task(self, rng):
        self.a, self.b = rng.integers(300, size=2)
        return Task(prompt=f"{self.a} + {self.b}?")


class Cached(ToolEnv):
    """Keeps what all its problems share."""

    def task(self, rng):
        if not hasattr(self, "words"):
            self.words = [f"word {number}" for number in range(300)]
        return Task(prompt=rng.choice(self.words))


def test_a_task_that_is_kept_on_the_environment_is_refused_and_a_cache_is_not():
    with pytest.raises(
        EnvironmentDefect, match=r"Forgetful.task sets self\.a; .*data=\{'a': \.\.\.\}\), and read self"
    ):
        TextEnv(Forgetful()).tasks[:5]
    assert len(TextEnv(Cached()).tasks[:5]) == 5
