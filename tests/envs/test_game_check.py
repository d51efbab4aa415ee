"""What is wrong with a game is found, and named with its seat; the suite's games have nothing wrong."""

import itertools
import time

import pytest

import palaestra
from palaestra.envs import Game, Task, tool
from palaestra.envs.checks import game_check, game_trials
from palaestra.envs.checks.findings import measure
from palaestra.envs.checks.game_check import GAME_CHECKS, check_game
from palaestra.errors import Broken

GAME = "test/flawed_v0"
ASKER, TELLER = "asker_0", "teller_0"
counter = itertools.count()


class Sound(Game):
    """Say the word that the other was told."""

    seats = (ASKER, TELLER)
    seat_tools = {TELLER: ("look",)}  # noqa: RUF012

    def task(self, rng):
        word = f"w{rng.integers(10**6)}"
        return Task(f"Tell word {rng.integers(10**6)}.", answer=word)

    @tool
    def look(self, place: str) -> str:
        """Look what the word is."""
        return self.problem.answer if place == "box" else "nothing"

    def rounds(self, task, rng):
        told = (yield {TELLER: task.prompt})[TELLER]
        said = (yield {ASKER: f"Repeat {told or 'nothing'}"})[ASKER]
        return {TELLER: float(told == task.answer), ASKER: float(said == task.answer)}


def demonstrate(messages, rng, tool_rate=1.0):
    if messages[-1]["role"] == "tool":
        return messages[-1]["content"]
    if messages[-1]["content"].startswith("Repeat"):
        return messages[-1]["content"].split()[-1]
    return '<tool_call>{"name": "look", "arguments": {"place": "box"}}</tool_call>'


class Generous(Sound):
    """Pays the asker for anything."""

    def rounds(self, task, rng):
        rewards = yield from super().rounds(task, rng)
        return rewards | {ASKER: 1.0}


class Declared(Generous):
    """And says so."""

    chance = {ASKER: 1.0}  # noqa: RUF012


class Forgiving(Sound):
    """Whoever is cut off has won."""

    def forfeit(self, culprit):
        return {culprit: 1.0}


class Moody(Sound):
    """Another course each time."""

    def rounds(self, task, rng):
        yield {ASKER: f"This is game {next(counter)}."}
        return dict.fromkeys(self.seats, 0.0)


class Endless(Sound):
    """Asks on and on."""

    def rounds(self, task, rng):
        while True:
            yield {TELLER: "And?"}


class Slow(Sound):
    """Computes for long where all others wait."""

    def rounds(self, task, rng):
        time.sleep(0.05)
        return (yield from super().rounds(task, rng))


class Fragile(Sound):
    """A turn can end the game for nobody's reward."""

    @tool
    def look(self, place: str) -> str:
        """Look what the word is."""
        if place != "box":
            raise Broken("the box is gone")
        return self.problem.answer


class Strict(Sound):
    """Raises on a turn that it does not like."""

    def rounds(self, task, rng):
        told = (yield {TELLER: task.prompt})[TELLER]
        int(told[1:])
        return dict.fromkeys(self.seats, 0.0)


class Few(Sound):
    """The same problem in both splits."""

    def task_set(self, split):
        return [Task("Tell the word.", answer="w1")]


class Silent(Sound):
    """A tool that is not described."""

    @tool
    def look(self, place: str) -> str:
        return self.problem.answer if place == "box" else "nothing"


class Clumsy(Sound):
    """Its script calls what is not there."""

    seat_tools = {}  # noqa: RUF012


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(game_trials, "MAX_STEPS", 100)
    monkeypatch.setattr(game_check, "EPISODES", 6)
    for limit in ("GAME_SECONDS", "CHEAT_SECONDS"):
        monkeypatch.setattr(game_check, limit, 60.0)  # A busy machine changes nothing.


def found(kind, names=GAME_CHECKS, demonstrator=True):
    """The findings that are no ok, by name, of these checks."""
    script = f"{__name__}:demonstrate" if demonstrator else None
    palaestra.register_game(GAME, f"{__name__}:{kind.__name__}", demonstrator=script)
    findings = measure({name: GAME_CHECKS[name] for name in names}, GAME)
    palaestra.registry._games.pop(GAME.replace("_v", "-v"))
    return {finding.name: finding.message for finding in findings if not finding.passed}


@pytest.mark.parametrize("kind", [Sound, Declared])
def test_a_sound_game_passes(kind):
    assert found(kind) == {}


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (Generous, "cheats fail", f"succeeds in 100% as {ASKER}, and Generous.chance there is 0%"),
        (Forgiving, "a seat that is cut off is scored", f"{ASKER} was cut off and has success 1.0"),
        (Moody, "determinism", "take randomness from rng only"),
        (Endless, "every game ends", "the game goes on after 100 turns"),
        (Fragile, "crashing is no escape", f"of {TELLER} broke the game"),
        (Strict, "hostile turns", "ValueError"),
        (Few, "splits disjoint", "such as 'Tell the word.'"),
        (Silent, "tool schemas", f"tool 'look' of {TELLER} has no description"),
        (Clumsy, "demonstrators play to the end", "makes a call that fails"),
    ],
)
def test_a_flaw_is_found_and_named(kind, name, said):
    assert said in found(kind, [name])[name]


def test_a_game_that_keeps_the_others_waiting_is_found(monkeypatch):
    monkeypatch.setattr(game_check, "GAME_SECONDS", 0.04)
    assert "mark the tool that takes so long" in found(Slow, ["every game ends"])["every game ends"]


def test_without_a_demonstrator_the_others_repeat_what_they_hear():
    assert found(Sound, demonstrator=False) == {}


def test_without_pettingzoo_its_tests_are_skipped(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pettingzoo.test", None)
    with pytest.raises(game_check.Skipped, match="palaestra\\[games\\]"):
        game_check.pettingzoo_contract("palaestra/debate_v0")


@pytest.mark.parametrize("game", palaestra.games())
def test_the_suites_games_pass(game):
    findings = check_game(game)
    assert [finding.name for finding in findings] == list(GAME_CHECKS)
    assert [finding for finding in findings if not finding.passed] == []
