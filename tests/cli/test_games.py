"""Games on the command line: checked, measured seat by seat, replayed and rescored."""

import json
import sys

import families
import pytest
from commands import refused, run

import palaestra
from palaestra.cli import main
from palaestra.errors import UnknownId
from palaestra.record import read, write

GAME = "palaestra/solver_critic-v0"
SOLVER, CRITIC = "solver_0", "critic_0"
SHORT = ("--max-turn-tokens", "16", "--max-episode-tokens", "400", "--device", "cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model whose turns are short."""
    return str(families.random_agent(tmp_path_factory.mktemp("random"), every=3))


def figures(tmp_path, *arguments):
    """The figures of an evaluation, and what was saved of it."""
    out, saved = tmp_path / "figures.json", tmp_path / "played.jsonl"
    for path in tmp_path.glob("played.jsonl*"):  # Other settings do not go on with it.
        path.unlink()
    assert main(["eval", GAME, *arguments, "--json", str(out), "--save", str(saved)]) == 0
    return json.loads(out.read_text()), list(read(saved))


def test_every_seat_is_measured(tmp_path, capsys):
    found, records = figures(tmp_path, "--tasks", "6", "--samples", "2", "--greedy")
    assert list(found["seats"]) == [f"{seat} {way}" for way in ("sampled", "greedy") for seat in (SOLVER, CRITIC)]
    assert {seat["success"] for seat in found["seats"].values()} == {1.0}
    assert found["seats"][f"{SOLVER} sampled"]["samples"] == 2
    assert len(records) == 2 * 6 * (2 + 1)
    assert "┃ solver_0 greedy ┃ critic_0 greedy ┃" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "played.jsonl")]) == 0
    assert "36 identical" in capsys.readouterr().out


def test_a_model_plays_the_seats_it_is_given_and_others_the_rest(model, tmp_path):
    found, records = figures(tmp_path, "--model", model, "--seats", SOLVER, "--tasks", "3", "--no-greedy", *SHORT)
    assert list(found["seats"]) == [SOLVER]
    assert found["seats"][SOLVER]["success"] == 0.0
    assert found["others"] == "demonstrator"
    assert {(r.episode.start.seat, r.agent, bool(r.episode.rows)) for r in records} == {
        (SOLVER, model, True),
        (CRITIC, "demonstrator", False),
    }
    assert {r.episode.reward for r in records if r.agent == "demonstrator"} == {1.0}
    found, records = figures(tmp_path, "--seats", SOLVER, "--others", model, "--tasks", "3", *SHORT)
    assert found["seats"][SOLVER]["success"] == 1.0
    assert {(r.episode.start.seat, bool(r.episode.rows)) for r in records} == {(SOLVER, False), (CRITIC, True)}
    assert main(["replay", str(tmp_path / "played.jsonl")]) == 0


def test_two_agents_are_compared_seat_by_seat(model, tmp_path):
    found, _ = figures(tmp_path, "--against", model, "--seats", CRITIC, "--tasks", "8", *SHORT)
    assert found["comparison"][CRITIC]["difference"] == 1.0
    assert found["against"]["seats"][CRITIC]["success"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((GAME, "--seats", "jury_0"), "the environment has the seats solver_0, critic_0"),
        (("two-hop", "--seats", SOLVER), "leave out --seats"),
    ],
)
def test_a_wrong_seat_is_refused(arguments, said, capsys):
    refused(capsys, said, "eval", *arguments, "--tasks", "2")
    refused(capsys, "name", "eval", GAME, "--others", "human")


def test_a_seat_without_its_game_is_told_and_is_no_proof(tmp_path, capsys):
    _, records = figures(tmp_path, "--tasks", "3")
    file = tmp_path / "half.jsonl"
    write(file, records[:-1])
    capsys.readouterr()
    told = "4 identical, 0 different, 1 not run, for other seats of their games are missing\n"
    assert run(capsys, "replay", file) == (1, told, "")
    status, out, _ = run(capsys, "rescore", file, "--reward", GAME)
    assert status == 1
    assert "1 episodes have no new reward" in out


def test_games_are_rewarded_anew_by_a_game_or_seat_by_seat_by_a_function(tmp_path, monkeypatch, capsys):
    figures(tmp_path, "--tasks", "3")
    (tmp_path / "of_games.py").write_text(
        "import palaestra\n"
        "from palaestra.envs.suite.solver_critic import SolverCritic\n\n\n"
        "class Meagre(SolverCritic):\n"
        "    def rounds(self, task, rng):\n"
        "        rewards = yield from super().rounds(task, rng)\n"
        "        return {seat: {name: part / 4 for name, part in own.items()} for seat, own in rewards.items()}\n\n\n"
        "def turns(attempt):\n"
        "    return attempt.turns / 8\n\n\n"
        'palaestra.register_game("me/meagre_v0", "of_games:Meagre")\n'
    )
    monkeypatch.chdir(tmp_path)
    for reward, new in (("of_games:me/meagre_v0", {0.25}), ("of_games:turns", {0.25, 0.375})):
        assert main(["rescore", "played.jsonl", "--reward", reward, "--out", "new.jsonl"]) == 0
        assert {record.episode.reward for record in read(tmp_path / "new.jsonl")} == new
    assert main(["eval", "two-hop", "--tasks", "1", "--save", "other.jsonl"]) == 0
    refused(capsys, "rewards games alone", "rescore", "other.jsonl", "--reward", "debate")
    palaestra.registry._games.pop("me/meagre-v0")


@pytest.fixture
def own_game(tmp_path, monkeypatch):
    """A game of one's own in the current folder, named with the module that registers it."""
    (tmp_path / "of_mine.py").write_text(
        "import palaestra\n"
        "from palaestra.envs import Game, Task\n\n\n"
        "class Copy(Game):\n"
        '    seats = ("a_0", "b_0")\n'
        "    def task(self, rng):\n"
        '        return Task(prompt=f"say {rng.integers(100)}", answer="")\n'
        "    def rounds(self, task, rng):\n"
        "        said = yield dict.fromkeys(self.seats, task.prompt)\n"
        "        return {seat: float(said[seat] == task.prompt[4:]) for seat in self.seats}\n\n\n"
        "def demonstrate(messages, rng, tool_rate=1.0):\n"
        '    return messages[-1]["content"][4:]\n\n\n'
        'palaestra.register_game("me/copy_v0", "of_mine:Copy", demonstrator="of_mine:demonstrate")\n'
    )
    monkeypatch.chdir(tmp_path)
    yield "of_mine:me/copy_v0"
    forgotten()
    palaestra.registry._demonstrators.pop("me/copy-v0", None)


def forgotten():
    """As in the next process, where nobody has imported its module yet."""
    palaestra.registry._games.pop("me/copy-v0", None)
    sys.modules.pop("of_mine", None)


def test_a_game_of_ones_own_is_replayed_and_rescored_by_its_module(own_game, capsys):
    assert main(["eval", own_game, "--tasks", "2", "--save", "c.jsonl"]) == 0
    forgotten()
    assert main(["replay", "c.jsonl", "--allow-code", "of_mine"]) == 0
    assert "4 identical, 0 different" in capsys.readouterr().out
    for reward, status in ((own_game, 0), ("palaestra/debate_v0", 2)):
        forgotten()
        assert main(["rescore", "c.jsonl", "--reward", reward, "--allow-code", "of_mine"]) == status
    captured = capsys.readouterr()
    assert "mean reward, new" in captured.out
    assert "whose seats are not those of" in captured.err
    forgotten()
    assert palaestra.registry.author_class(own_game).seats == ("a_0", "b_0")
    with pytest.raises(UnknownId, match="me/copy_v0"):
        palaestra.registry.author_class("me/copi_v0")
