"""Recorded games run again: identical with all seats, without tools; a changed word or reward is found."""

from dataclasses import replace

import game_worlds
import pytest

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.records.games import GameStage, Gathering, replay_game, rescored
from palaestra.episode import Ending, Start
from palaestra.errors import UsageError
from palaestra.record import Record, from_line, to_line

GAMES = ["palaestra/debate_v0", "palaestra/negotiation_v0", "palaestra/solver_critic_v0"]
DUEL = "test/replayed_duel_v0"
LEFT, RIGHT = "left_0", "right_0"
CALLS = [
    '<tool_call>{"name": "echo", "arguments": {"text": "hi"}}</tool_call>',
    '<tool_call>{"name": "nap"}</tool_call><tool_call>{"name": "nobody"}</tool_call>',
    "<tool_call>{",
]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    palaestra.register_game(DUEL, "game_worlds:Duel")
    yield
    palaestra.registry._games.pop("test/replayed_duel-v0")


def recorded(game, rule=None, games=4, **options):
    """Games that were played, as they come back from a file; seats in any order."""
    arena = palaestra.arena(game, 6, **options)
    seats = arena.seats or (None,)
    starts = [Start(task, 9 + task, seat=seat) for task in range(games) for seat in seats]
    agent = Agent(ScriptedPolicy(rule or palaestra.demonstrator(game), format=options.get("format", "hermes")))
    episodes = list(play(agent, arena, starts))
    arena.close()
    return [from_line(to_line(Record(game, episode, options))) for episode in episodes[::-1]]


def whole(records, source="here"):
    gathering = Gathering()
    found = [game for record in records if (game := gathering.add(source, "a place", record)) is not None]
    assert gathering.incomplete == []
    return found


def differences(records):
    stage = GameStage()
    return [
        replay_game(*stage.game(game[0][1].env_id, game[0][1].options), episodes_of(game)) for game in whole(records)
    ]


def episodes_of(game):
    return {record.episode.start.seat: record.episode for _, record in game}


def some_calls(messages, rng):
    return CALLS[int(rng.integers(3))] if rng.random() < 0.5 else "word " * int(rng.integers(1, 5))


@pytest.mark.parametrize("options", [{}, {"split": "eval", "format": "llama3"}, {"seat": "first"}])
@pytest.mark.parametrize("game", GAMES)
def test_games_come_out_identical(game, options):
    if "seat" in options:
        options = {"seat": palaestra.registry.game_class(game).seats[0]}
    assert differences(recorded(game, **options)) == [None] * 4


def test_tools_are_not_run_again(monkeypatch):
    records = recorded(DUEL, some_calls, games=12)
    assert {call.status for record in records for call in record.episode.attempt.calls} == {"ok", "bad_call"}
    for tool in ("echo", "nap"):
        monkeypatch.setattr(game_worlds.Duel, tool, lambda self, **given: pytest.fail("a tool ran"))
    assert differences(records) == [None] * 12


def cut(ending, game=DUEL):
    """A game in which the right seat has spoken once when the left is closed in its second turn."""
    arena = palaestra.arena(game, 2)
    for slot, seat in enumerate((LEFT, RIGHT)):
        arena.begin(slot, Start(1, 1, seat=seat))
    arena.recv(2, 60)
    arena.send({0: "one", 1: "two"})
    arena.recv(2, 60)
    arena.send({1: "three"})
    arena.finish(0, ending, "I was ab" if ending is Ending.LENGTH_LIMIT else "")
    events = arena.recv(2, 60)
    arena.close()
    return [
        Record(game, palaestra.Episode(e.start, e.attempt, (), e.ending, e.reward, e.parts, e.fault)) for e in events
    ]


@pytest.mark.parametrize("ending", [Ending.LENGTH_LIMIT, Ending.BROKEN])
def test_a_game_that_was_cut_short_is_run_as_far_as_it_got(ending):
    assert differences(cut(ending)) == [None]


def test_a_game_that_a_tool_broke_is_run_as_far_as_it_got():
    records = recorded(DUEL, lambda messages, rng: '<tool_call>{"name": "fall"}</tool_call>', games=2)
    assert {record.episode.ending for record in records} == {Ending.BROKEN}
    assert differences(records) == [None] * 2


def test_a_game_that_a_hanging_tool_broke_is_run_as_far_as_it_got():
    call = '<tool_call>{"name": "hang"}</tool_call>'
    game_worlds.gate.clear()  # Others open it, so that their threads may end.
    records = recorded(DUEL, lambda messages, rng: call if messages[0]["role"] == "system" else "well", games=1)
    game_worlds.gate.set()
    assert {record.episode.ending for record in records} == {Ending.BROKEN}
    assert all("hang gave no result in time" in record.episode.fault for record in records)
    assert differences(records) == [None]
    game_worlds.gate.clear()


def altered(record, **changes):
    return replace(record, episode=replace(record.episode, **changes))


def test_what_differs_is_named_with_its_seat():
    records = recorded(GAMES[2], games=1)
    place = next(at for at, record in enumerate(records) if record.episode.start.seat == "critic_0")
    lie = [*records]
    lie[place] = altered(records[place], reward=0.5)
    assert "reward of critic_0: recorded 0.5, replayed 1.0" in str(differences(lie)[0])
    attempt = records[place].episode.attempt
    messages = list(attempt.messages)
    messages[-1] = {**messages[-1], "content": "Disagree."}
    lie[place] = altered(records[place], attempt=replace(attempt, messages=tuple(messages)))
    assert "message of solver_0" in str(differences(lie)[0])
    lie[place] = altered(records[place], attempt=replace(attempt, messages=tuple(messages[:-1])))
    assert "the game goes on, and asks critic_0" in str(differences(lie)[0])


def test_seats_are_gathered_by_game_and_source():
    records = recorded(GAMES[2], games=2)
    gathering = Gathering()
    assert gathering.add("one", "1", records[0]) is None
    assert gathering.add("two", "2", records[1]) is None
    assert [place for place, _ in gathering.incomplete] == ["1", "2"]
    assert gathering.add("one", "3", records[0]) is None  # The same seat again is another game.
    game = gathering.add("one", "4", records[1])
    assert [place for place, _ in game] in (["1", "4"], ["4", "1"])
    assert [record.episode.start.seat for _, record in game] == ["solver_0", "critic_0"]


def test_another_game_rewards_what_was_played():
    palaestra.register_game("test/generous_v0", f"{__name__}:Generous")
    (game,) = whole(recorded(DUEL, some_calls, games=1))
    new = rescored(game, "test/generous_v0", GameStage())
    assert [record.episode.reward for record in new] == [0.25, 0.75]
    assert [record.episode.attempt for record in new] == [record.episode.attempt for _, record in game]
    with pytest.raises(UsageError, match="seats are not those"):
        rescored(game, GAMES[2], GameStage())
    palaestra.register_game("test/other_v0", f"{__name__}:Other")
    with pytest.raises(UsageError, match="asks for other turns"):
        rescored(game, "test/other_v0", GameStage())
    for name in ("generous", "other"):
        palaestra.registry._games.pop(f"test/{name}-v0")


class Generous(game_worlds.Duel):
    """The same course, other rewards."""

    def rounds(self, task, rng):
        yield from super().rounds(task, rng)
        return {LEFT: 0.25, RIGHT: 0.75}


class Other(game_worlds.Duel):
    """Another course."""

    def rounds(self, task, rng):
        yield {LEFT: "something else"}
        return dict.fromkeys(self.seats, 0.0)
