"""`check` finds what is wrong: every check fails on an environment that breaks its promise."""

import gymnasium
import pytest

import palaestra
from palaestra import Task, UnknownId
from palaestra.envs import ToolEnv, tool
from palaestra.envs.checks import cheats, trials
from palaestra.envs.checks.check import check

counter = iter(range(10**9))


class Base(ToolEnv):
    """Solved by adding."""

    max_turns = 3

    def task(self, rng):
        number = rng.integers(10**6)
        return Task(prompt=f"What is {number} + 1?", answer=f"never {number}")

    @tool
    def add(self, a: int) -> int:
        """Add one."""
        return a + 1

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class Undescribed(Base):
    @tool
    def undescribed(self) -> str:
        return ""


class Random(Base):
    def task(self, rng):
        number = next(counter)
        return Task(prompt=f"What is {number} + 1?", answer=f"never {number}")


class Leaky(Base):
    def task_set(self, split):
        return [Task(prompt="What is 1 + 1?", answer="2")]


class Generous(Base):
    def reward(self, attempt):
        return float("What" in (attempt.answer or ""))


class Fragile(Base):
    def reward(self, attempt):
        return float(len(attempt.messages[-1]["content"].encode()) < 0)


class Forgetful(Base):
    def reward(self, attempt):
        return float(attempt.answer.strip() == attempt.task.answer)


def unable(messages, rng):
    """A demonstrator that cannot play."""
    return "nothing"


def failed(cls, **kwargs):
    env_id = f"test/{cls.__name__}-v0"
    palaestra.register(env_id, f"{__name__}:{cls.__name__}", **kwargs)
    try:
        return {finding.name for finding in check(env_id) if not finding.passed}
    finally:
        gymnasium.registry.pop(env_id)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Tests run in importlib mode: this module must be found by its name."""
    import sys

    module = type(sys)(__name__)
    module.__dict__.update(globals())
    monkeypatch.setitem(sys.modules, __name__, module)
    monkeypatch.setattr(trials, "CHEAT_SECONDS", 60.0)  # As many episodes on a busy machine as on any other.
    monkeypatch.setattr(cheats, "SAMPLE_SECONDS", 60.0)


def test_a_sound_environment_has_no_findings():
    assert failed(Base) == set()


@pytest.mark.parametrize(
    ("cls", "finding"),
    [(Undescribed, "tool schemas"), (Random, "tasks are sound"), (Leaky, "splits disjoint"), (Generous, "cheats fail"),
     (Fragile, "hostile turns"), (Forgetful, "unanswered episodes are scored")],
)  # fmt: skip
def test_a_broken_promise_is_found(cls, finding):
    assert finding in failed(cls)


def test_a_demonstrator_that_cannot_play_is_found():
    assert failed(Base, demonstrator=f"{__name__}:unable") == {"demonstrator succeeds"}


def test_unknown_ids_name_the_closest():
    with pytest.raises(UnknownId, match="palaestra/TwoHop-v0"):
        check("palaestra/TwoHops-v0")


def test_what_could_not_be_measured_is_skipped_and_not_called_ok():
    palaestra.register("test/Base-v0", f"{__name__}:Base")
    skipped = {finding.name for finding in check("test/Base-v0") if finding.skipped}
    gymnasium.registry.pop("test/Base-v0")
    assert skipped == {"demonstrator succeeds"}
    assert not any(finding.skipped for finding in check("palaestra/TwoHop-v0"))
