"""What an author's code raises is told in one sentence, with its line and the task, whatever the command."""

import sys
from dataclasses import replace

import gymnasium
import pytest
from commands import refused, run

from palaestra import Broken, EnvironmentDefect
from palaestra.cli import main
from palaestra.cli.blame import blaming
from palaestra.record import Record, read, write

FAIR = """\
import palaestra
from palaestra.envs.suite.calculator import Calculator


def share(attempt):
    return len(attempt.calls) / (attempt.turns - 1)


class Fair(Calculator):
    def reward(self, attempt):
        return share(attempt)


class Judged(Calculator):
    async def reward(self, attempt):
        return share(attempt)


def dear(attempt):
    return 2.0


def guess(messages, rng, tool_rate=1.0):
    return "Answer: 1"


def forgets(messages, rng, tool_rate=1.0):
    "Answer: 1"


class Drawn(Calculator):
    def task(self, rng):
        return rng.integers(1, 0)


palaestra.register("me/Drawn-v0", "a_fair_world:Drawn", demonstrator="a_fair_world:forgets")
palaestra.register("me/Forgets-v0", "palaestra.envs.suite.calculator:Calculator", demonstrator="a_fair_world:forgets")
palaestra.register("me/Fair-v0", "a_fair_world:Fair", demonstrator="a_fair_world:guess")
palaestra.register("me/Judged-v0", "a_fair_world:Judged", demonstrator="a_fair_world:guess")
"""
LINE = "a_fair_world.py, line 6, in share: ZeroDivisionError: division by zero"


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    """A folder with environments whose rewards divide by zero where no tool was used."""
    (tmp_path / "a_fair_world.py").write_text(FAIR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield tmp_path
    for name in ("me/Fair-v0", "me/Judged-v0", "me/Drawn-v0", "me/Forgets-v0"):
        gymnasium.registry.pop(name, None)
    sys.modules.pop("a_fair_world", None)


def play(monkeypatch, tmp_path, capsys, *turns, name="Fair"):
    """Exit status and output of `palaestra play` with these turns piped in."""
    (tmp_path / "turns.txt").write_text("".join(f"{turn}\n" for turn in turns))
    with (tmp_path / "turns.txt").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        return run(capsys, "play", f"a_fair_world:me/{name}-v0", "--seed", "1")[:2]


@pytest.mark.parametrize("name", ["Fair", "Judged"])
def test_a_reward_that_raises_ends_eval_in_a_sentence_with_its_line_and_the_task(capsys, name):
    status, _, said = run(capsys, "eval", f"a_fair_world:me/{name}-v0", "--tasks", "4")
    assert status == 2
    assert said.startswith("palaestra eval: task eval/")
    assert "'What is " in said
    assert LINE in said
    assert len(said.splitlines()) == 1


def test_play_survives_a_reward_that_raises_and_the_turn_can_be_taken_back(monkeypatch, world, capsys):
    call = '/call calculator expression="2 * 3"'
    status, out = play(monkeypatch, world, capsys, "Answer: 1", "Answer: 2", "/reward", "/undo", call, "Answer: 3")
    assert out.count(LINE) == 2, "by the turn, and by /reward"
    assert "task train/" in out
    assert "the episode has ended: /undo takes the last turn back" in out
    assert "1 taken back; turn 0" in out
    assert "[answered: reward 1]" in out
    assert status == 0
    assert play(monkeypatch, world, capsys, "Answer: 1")[0] == 1


def test_a_demonstrator_that_returns_no_text_is_named_by_module_and_function(monkeypatch, world, capsys):
    said = refused(capsys, "a_fair_world:forgets returned None", "eval", "a_fair_world:me/Forgets-v0", "--tasks", "1")
    assert "expected str" in said
    assert "a_fair_world:forgets returned None" in play(monkeypatch, world, capsys, "/script", name="Forgets")[1]


def test_what_a_compiled_library_refuses_is_told_at_the_authors_line(capsys):
    said = refused(capsys, "ValueError: low >= high", "eval", "a_fair_world:me/Drawn-v0", "--tasks", "1")
    assert "a_fair_world.py, line 33, in task" in said
    assert ".pyx" not in said


def test_rescore_names_the_line_and_the_episode(world, capsys):
    assert main(["eval", "calculator", "--model", "demonstrator", "--tasks", "2", "--save", "played.jsonl"]) == 0
    played = [one.episode for one in read(world / "played.jsonl")]
    at_once = [replace(one, attempt=replace(one.attempt, turns=1)) for one in played]
    write(world / "played.jsonl", [Record("palaestra/Calculator-v0", one, {"split": "eval"}) for one in at_once])
    capsys.readouterr()
    for reward in ("a_fair_world:share", "a_fair_world:me/Fair-v0"):
        said = refused(capsys, "played.jsonl, episode 1: ", "rescore", "played.jsonl", "--reward", reward)
        assert "a_fair_world.py, line 6" in said
        assert "ZeroDivisionError: division by zero" in said
    refused(capsys, "played.jsonl, episode 1: ", "rescore", "played.jsonl", "--reward", "a_fair_world:dear")


def test_what_palaestra_itself_does_wrong_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("palaestra.cli.listing.textwrap", None)
    with pytest.raises(AttributeError):
        main(["list"])


@pytest.mark.parametrize("error", [Broken("a judge is gone"), EnvironmentDefect("no reward"), BrokenPipeError()])
def test_what_is_said_well_already_is_left_as_it_is(error):
    with pytest.raises(type(error)) as found, blaming():
        raise error
    assert found.value is error
