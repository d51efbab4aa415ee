"""What is wrong with a game is found, and named with its seat; its toolkits are looked at like its tools."""

import sys

import flawed
import pettingzoo
import pytest
from checked import RECORDED, failed, findings

import palaestra
from palaestra.cli import main as command
from palaestra.envs.checks import check, contracts, trials
from palaestra.envs.checks.check import CHECKS, OF_ONE_SEAT
from palaestra.envs.checks.trials import Subject

GAME = [name for name, function in CHECKS.items() if function not in OF_ONE_SEAT and name != RECORDED]
WRONG = [
    (flawed.GenerousGame, "cheats fail", "of asker_0 succeeds in 100%, and GenerousGame.chance there is 0%"),
    (flawed.ForgivingGame, "unanswered episodes are scored", "of asker_0 without an answer has success 1.0"),
    (flawed.MoodyGame, "determinism", "flawed.numbers has changed, and lives on"),
    (flawed.ChangingGame, "determinism", "Task.data['seen'] is [] and [1]"),
    (flawed.KeepingGame, "determinism", "Kept.lines has changed, and lives on: set it in Kept.start"),
    (flawed.EndlessGame, "every episode ends", "the episode goes on after 100 turns"),
    (flawed.BlamingGame, "crashing is no escape", "of teller_0 ended an episode broken"),
    (flawed.StrictGame, "hostile turns", "ValueError"),
    (flawed.FewGame, "splits disjoint", "such as 'Tell the word.'"),
    (flawed.SilentGame, "tool schemas", "tool 'show' of teller_0 has no description"),
    (flawed.ClumsyGame, "demonstrator succeeds", "teller_0 played by rule makes a call that fails"),
    (flawed.MisspeltGame, "settings are known", "MisspeltGame.seat_tols is set, and nobody reads it; is 'seat_tools'"),
    (flawed.ClumsyGame, "settings are known", "no seat may call the tool 'look'; give it to one"),
    (flawed.IdleKitGame, "settings are known", "no seat may call the tool 'write'; give it to one"),
    (flawed.WatchingGame, RECORDED, "first as it was played and then from its record in a fresh process"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(trials, "MAX_STEPS", 100)
    monkeypatch.setattr(check, "GAME_SECONDS", 60.0)  # A busy machine changes nothing.


@pytest.mark.parametrize("cls", [flawed.Pair, flawed.DeclaredGame, flawed.BoardGame, flawed.JudgedGame])
def test_a_sound_game_passes(cls):
    demonstrator = () if cls is flawed.JudgedGame else flawed.demonstrate
    found = findings(cls, demonstrator=demonstrator)
    assert [one.name for one in found] == GAME
    assert [one for one in found if not one.passed] == []


@pytest.mark.parametrize(("cls", "name", "said"), WRONG)
def test_a_flaw_is_found_and_named(cls, name, said):
    assert said in failed(cls, name, demonstrator=flawed.demonstrate)[name]


def test_what_a_toolkit_declares_goes_to_the_rounds_and_through_the_record():
    assert failed(flawed.DeclaringGame, RECORDED, demonstrator=flawed.demonstrate) == {}


def test_a_game_that_keeps_the_others_waiting_is_found(monkeypatch):
    monkeypatch.setattr(check, "GAME_SECONDS", 0.04)
    assert "mark the tool that takes so long" in failed(flawed.SlowGame, "every episode ends")["every episode ends"]


def test_without_pettingzoo_its_tests_are_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(contracts.Skipped, match="palaestra\\[games\\]"):
        contracts.pettingzoo_contract(Subject("palaestra/debate_v0"))


def test_a_game_of_others_is_checked_too():
    pettingzoo.register("parallel", "test/others_v0", entry_point="palaestra.envs.arena.pettingzoo:make_parallel",
                        kwargs={"entry_point": "flawed:Pair"})  # fmt: skip
    assert [one for one in check.check("test/others-v0") if not one.passed] == []


@pytest.mark.prove
def test_the_suites_games_pass(capsys):
    for game in palaestra.games():
        assert command(["check", game]) == 0
        said = capsys.readouterr().out
        assert all(f"ok   {name}" in said for name in GAME)
        assert "API test" not in said
