"""`check` finds what an episode leaves behind for the next one, what changes from run to run, and what nobody reads."""

import threading
import time
from typing import ClassVar

import pytest
from checked import failed_of

import palaestra
from palaestra import Task
from palaestra.envs import Game, ToolEnv, Toolkit, tool
from palaestra.envs.checks import loop_checks
from palaestra.envs.checks.findings import measure
from palaestra.envs.checks.game_check import GAME_CHECKS

pytestmark = pytest.mark.usefixtures("own_module")


class Sound(ToolEnv):
    """Keeps every promise."""

    max_turns = 4

    def task(self, rng):
        number = int(rng.integers(10**6))
        return Task(f"What is {number} + 1?", answer=str(number + 1))

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


class OnSelf(Sound):
    """A list that its constructor makes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    @tool
    def count(self, word: str) -> int:
        """Count the calls."""
        self.seen.append(word)
        return len(self.seen)


class OnDemand(Sound):
    """An attribute that its tool makes."""

    @tool
    def count(self) -> int:
        """Count the calls."""
        self.calls = getattr(self, "calls", 0) + 1
        return self.calls


class OnClass(Sound):
    """A list that all environments share."""

    seen: ClassVar[list] = []

    @tool
    def count(self) -> int:
        """Count the calls."""
        self.seen.append(1)
        return len(self.seen)


class Counter(Toolkit):
    """Forgets nothing."""

    def __init__(self):
        self.calls = 0

    @tool
    def count(self) -> int:
        """Count the calls."""
        self.calls += 1
        return self.calls


class InToolkit(Sound):
    toolkits = (Counter,)


class Fresh(Counter):
    def start(self, task, rng):
        self.calls = 0


class Forgetting(Sound):
    toolkits = (Fresh,)


class Caching(OnSelf):
    """What it keeps changes nothing that the agent sees."""

    @tool
    def count(self, word: str) -> int:
        """Count the letters."""
        self.seen.append(word)
        return len(word)


class ByItsTool(Sound):
    """Fixed tasks, which a tool changes."""

    def task_set(self, split):
        return [Task(f"{split} {number}?", answer=str(number), data={"seen": []}) for number in range(4)]

    @tool
    def count(self) -> str:
        """Count the calls."""
        self.problem.data["seen"].append(1)
        return "counted"


class ByItsReward(Sound):
    def reward(self, attempt):
        attempt.task.data["judged"] = True
        return super().reward(attempt)


class Addressing(Sound):
    @tool
    def show(self) -> object:
        """Show a thing."""
        return object()


class Unawaited(Sound):
    @tool
    def show(self) -> str:
        """Show what comes later."""
        return self.later()

    async def later(self):
        return "late"


class Sleeping(Sound):
    def reward(self, attempt):
        threading.Event().wait(0.1 if attempt.answer else 0)
        return super().reward(attempt)


class SlowFresh(Fresh):
    def start(self, task, rng):
        super().start(task, rng)
        time.sleep(0.1)


class SlowToStart(Sound):
    toolkits = (SlowFresh,)


class BesideOthers(SlowFresh):
    @tool(blocking=True)
    def wait(self) -> str:
        """Wait."""
        return "done"


class StartsBesideOthers(Sound):
    toolkits = (BesideOthers,)


class Misspelt(Sound):
    max_turn = 3


class Lengthened(Sound):
    system_prompt = "End with Answer: NUMBER"


class Reading(Sound):
    """Its own attributes resemble settings, and it reads them."""

    max_turn = 3
    system_prompt = "What is"
    timeouts = (1, 2)

    def task(self, rng):
        task = super().task(rng)
        return task if task.prompt.startswith(self.system_prompt) else Task(str(self.max_turn))


class Sharing(Sound):
    shared = ("clinet",)

    def __init__(self, **options):
        super().__init__(**options)
        self.client = object()


class SharingLater(Sound):
    shared = ("client",)

    @tool
    def ask(self) -> str:
        """Ask."""
        self.client = "client"
        return self.client


@pytest.mark.parametrize("cls", [OnSelf, OnDemand, InToolkit])
def test_what_an_episode_leaves_behind_is_found_without_a_demonstrator(cls):
    said = failed_of(cls, "determinism", "gymnasium contract", "vector equals single")
    assert said.keys() == {"determinism"}
    assert "played differently after another episode" in said["determinism"]
    assert "in the start of a Toolkit: count['observation'] is '1' and '" in said["determinism"]


def test_what_all_environments_share_is_found_without_a_demonstrator():
    assert "two plays of one script differ" in failed_of(OnClass, "determinism")["determinism"]


@pytest.mark.parametrize("cls", [Forgetting, Caching, Reading, SharingLater, StartsBesideOthers])
def test_what_changes_nothing_is_no_finding(cls, monkeypatch):
    monkeypatch.setattr(loop_checks, "IN_PLACE_SECONDS", 0.05)
    monkeypatch.setattr(loop_checks, "_TRIES", 50)  # One that takes long waits, on the busiest machine.
    names = ("settings are known", "determinism", "vector equals single", "loop is never blocked")
    assert failed_of(cls, *names) == {}


@pytest.mark.parametrize(
    ("cls", "what"),
    [(ByItsTool, "Task.data['seen'] is [] and [1]"), (ByItsReward, "Task.data is {} and {'judged': True}")],
)  # fmt: skip
def test_a_task_that_is_changed_as_it_is_played_is_found(cls, what):
    said = failed_of(cls, "determinism")["determinism"]
    assert "a task is changed as it is played" in said
    assert said.endswith(what)


@pytest.mark.parametrize(("cls", "what"), [(Addressing, "<object object at 0x"), (Unawaited, "<coroutine object")])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_result_without_a_text_of_its_own_is_found(cls, what):
    said = failed_of(cls, "determinism")["determinism"]
    assert f"the tool 'show' shows the agent '{what}" in said
    assert "return a text" in said


@pytest.mark.parametrize(
    ("cls", "said"), [(Sleeping, "the plain reward took"), (SlowToStart, "the start of its toolkits took")]
)
def test_what_keeps_the_others_waiting_in_place_is_found(cls, said, monkeypatch):
    monkeypatch.setattr(loop_checks, "IN_PLACE_SECONDS", 0.05)
    assert said in failed_of(cls, "loop is never blocked")["loop is never blocked"]


@pytest.mark.parametrize(
    ("cls", "said"),
    [(Misspelt, "Misspelt.max_turn is set, and nobody reads it; is 'max_turns' meant?"),
     (Lengthened, "Lengthened.system_prompt is set, and nobody reads it; is 'system' meant?"),
     (Sharing, "Sharing.shared names 'clinet', and there is no such attribute; is 'client' meant?")],
)  # fmt: skip
def test_a_misspelt_setting_is_found(cls, said):
    assert failed_of(cls, "settings are known") == {"settings are known": said}


class Pair(Game):
    """Say the word."""

    seats = ("one_0", "two_0")
    seat_tols = {"one_0": ("look",)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Say {rng.integers(10**6)}.", answer="word", data={"seen": []})

    @tool
    def look(self) -> str:
        """Look."""
        return "word"

    def rounds(self, task, rng):
        said = yield {"one_0": task.prompt}
        return dict.fromkeys(self.seats, float(said["one_0"] == task.answer))


class Toolless(Pair):
    seat_tols = ()

    def task(self, rng):
        return Task(f"Say {len(self.seat_tols)} {rng.integers(10**6)}.", answer="word", data={"seen": []})


class Remembering(Pair):
    def rounds(self, task, rng):
        self.count = getattr(self, "count", 0) + 1
        yield {"one_0": f"Game {self.count}"}
        return dict.fromkeys(self.seats, 0.0)


class Changing(Pair):
    def rounds(self, task, rng):
        task.data["seen"].append(1)
        return (yield from super().rounds(task, rng))


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [(Pair, "settings are known", "Pair.seat_tols is set, and nobody reads it; is 'seat_tools' meant?"),
     (Toolless, "settings are known", "no seat may call the tool 'look'"),
     (Remembering, "determinism", "set up in rounds what tools change"),
     (Changing, "determinism", "Task.data['seen'] is [] and [1]")],
)  # fmt: skip
def test_a_game_is_held_to_the_same(kind, name, said):
    palaestra.register_game("test/pair_v0", f"{__name__}:{kind.__name__}")
    (found,) = measure({name: GAME_CHECKS[name]}, "test/pair_v0")
    palaestra.registry._games.pop("test/pair-v0")
    assert not found.passed
    assert said in found.message
