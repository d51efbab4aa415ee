"""A game is gone back to and gone on from several times; one that tells another story is refused."""

import game_worlds
import pytest

from palaestra.envs import Task
from palaestra.envs.games.game import Game
from palaestra.envs.suite.negotiation import Negotiation
from palaestra.envs.suite.solver_critic import SolverCritic
from palaestra.episode import Ending, Start
from palaestra.errors import UsageError


class Dice(Game):
    """Asks for a throw again and again: all noise is the rounds' own. A tool counts on the game itself."""

    seats = ("a_0", "b_0")
    seat_tools = {"a_0": ("count",)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Throw {rng.integers(1000)}.", "x")

    @game_worlds.tool
    def count(self) -> str:
        """Count on."""
        self.counted += 1
        return str(self.counted)

    def rounds(self, task, rng):
        self.counted = 0
        for _ in range(3):
            yield {"a_0": f"You threw {rng.integers(10**9)}, counted {self.counted}."}
        return dict.fromkeys(self.seats, min(1.0, self.counted / 4))


def begun(game, task=0, seed=3):
    game.open({seat: Start(task, seed, seat=seat) for seat in game.seats})
    return game


COUNT = '<tool_call>{"name": "count"}</tool_call>'


def end(game, *turns):
    """Take these turns of a_0; what it heard in the end, and its reward."""
    for text in turns:
        events = game.act({"a_0": text})
    return [message["content"] for message in game.records["a_0"].messages], events["a_0"].reward


def test_restoring_goes_on_exactly_as_from_there_any_number_of_times():
    game = begun(Dice())
    game.act({"a_0": COUNT})
    game.act({"a_0": "on"})
    here = game.snapshot()
    assert repr(here) == "<GameSnapshot of Dice after 2 turns>"
    ends = [end(game, COUNT, "x", "y")]
    for _ in range(2):
        asked = game.restore(here)
        assert list(asked) == ["a_0"]
        ends.append(end(game, COUNT, "x", "y"))
    assert ends[0] == ends[1] == ends[2]
    assert ends[0][1] == 0.5
    other = Dice()
    other.restore(here)
    assert end(other, COUNT, "x", "y") == ends[0]


def test_branches_differ_in_their_noise_only_and_their_parent_stays():
    game = begun(Dice())
    game.act({"a_0": "on"})
    twins, children = game.fork(2, own_noise=False), game.fork(3)
    again = game.fork(3)
    before = [message["content"] for message in game.records["a_0"].messages]
    ends = {name: [end(one, "x", "y")[0] for one in kids] for name, kids in (("own", children), ("again", again))}
    assert len({tuple(told) for told in ends["own"]}) == 3
    assert ends["own"] == ends["again"]
    assert all(told[: len(before)] == before for told in ends["own"])
    assert end(twins[0], "x", "y") == end(twins[1], "x", "y") == end(game, "x", "y")


def test_a_branch_is_branched_and_restored_with_its_own_noise():
    game = begun(Dice())
    (child,) = game.fork(1)
    here = child.snapshot()
    first = end(child, "x", "y", "z")
    child.restore(here)
    child.act({"a_0": "x"})
    later = child.snapshot()
    assert end(child, "y", "z") == first
    child.restore(later)
    assert end(child, "y", "z") == first
    assert end(begun(Dice()), "x", "y", "z") != first


@pytest.mark.parametrize("kind", [SolverCritic, Negotiation])
def test_a_branch_can_end_without_its_parent(kind):
    game = begun(kind())
    (child,) = game.fork(1, own_noise=False)
    events = child.stop(Ending.LENGTH_LIMIT, kind.seats[0])
    assert {event.ending for event in events.values()} == {Ending.LENGTH_LIMIT, Ending.TURN_LIMIT}
    assert game.is_open
    assert not child.is_open


class Careless(Dice):
    """Its tool counts on a number that the rounds do not set up."""

    counted = 0

    def rounds(self, task, rng):
        yield {"a_0": f"{self.counted}?"}
        yield {"a_0": f"{self.counted}?"}
        return dict.fromkeys(self.seats, 0.0)


def test_what_has_no_snapshot_is_refused_with_the_reason():
    with pytest.raises(UsageError, match="not running"):
        Dice().snapshot()
    game = begun(Careless())
    game.act({"a_0": COUNT})
    game.act({"a_0": "on"})
    with pytest.raises(UsageError, match=r"did not come out the same.*let rounds set up what tools change"):
        game.restore(game.snapshot())
    with pytest.raises(UsageError, match="expected a GameSnapshot of Dice"):
        Dice().restore(begun(Careless()).snapshot())
    with pytest.raises(UsageError, match=r"fork\(0\)"):
        begun(Dice()).fork(0)
