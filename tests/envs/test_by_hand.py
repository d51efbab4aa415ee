"""Episodes stepped by hand: turns taken back with and without snapshots, seats, rewards so far, records taken up."""

import gymnasium
import pettingzoo
import pytest
import test_replay as shops
from driven import refused
from test_replay import MARKET, SHOP, Market, Shop, Till, _registered, calls  # noqa: F401  (the fixture of both)

import palaestra
from palaestra import Broken, Ending, UsageError
from palaestra.envs.arena.opening import spec_of
from palaestra.envs.core.machine import Machine
from palaestra.envs.records.by_hand import ByHand, open_by_hand
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.record import Record, from_line, to_line


@pytest.fixture
def remembering(monkeypatch):
    """The till has snapshots."""
    monkeypatch.setattr(Till, "snapshot", lambda self: self.sold)
    monkeypatch.setattr(Till, "restore", lambda self, sold: setattr(self, "sold", sold))


def opened(env_id=SHOP, **options):
    hand = open_by_hand(env_id, options)
    hand.open(1, 3)
    return hand


def sell(what):
    return calls(("sell", {"what": what}))


def sold(hand):
    return [kit.sold for _, kit in hand.machine.kits.instances]


def stored(hand):
    return [from_line(to_line(record)) for record in hand.records()]


def test_turns_taken_back_take_the_toolkits_with_them(remembering):
    hand = opened()
    first = hand.event
    hand.say(sell("a"))
    second = hand.event
    hand.say(sell("b"))
    hand.say("done")
    assert (hand.event.ending, hand.event.reward) == (Ending.ANSWERED, 1.0)
    hand.undo()
    assert sold(hand) == [[("a", 3), ("b", 3)]]
    hand.undo(1)
    assert (sold(hand), hand.event.messages) == ([[("a", 3)]], second.messages)
    hand.say(sell("c"))
    assert sold(hand) == [[("a", 3), ("c", 3)]]
    hand.undo(2)
    assert (hand.event.messages, hand.rebuilt) == (first.messages, False)
    refused("1 turns cannot be taken back; 0 have been taken", hand.undo)
    hand.close()


def test_without_snapshots_turns_are_taken_back_by_outcomes_and_toolkits_say_what_they_declare_now():
    hand = opened()
    hand.say(sell("a"))
    shops.ran.clear()
    (event,) = hand.closed().values()
    assert event.attempt.final == {"sold": [("a", 3)]}
    assert shops.ran == ["final"], "nothing is started, sold or closed for the reward so far"
    hand.say(sell("b"))
    shops.ran.clear()
    hand.undo()
    assert hand.rebuilt
    assert shops.ran == ["close", "start"], "no tool ran again"
    assert sold(hand) == [[]]
    assert [call.text for call in hand.attempt(None).calls] == ["a for 3"]
    hand.say("done")
    assert hand.event.ending is Ending.ANSWERED
    hand.close()


def test_the_reward_so_far_and_its_record_change_nothing(remembering):
    hand = opened()
    for what in "ab":
        hand.say(sell(what))
    shops.ran.clear()
    for _ in range(2):
        (event,) = hand.closed().values()
        assert (event.ending, event.reward, event.attempt.final) == (
            Ending.LENGTH_LIMIT, 1.0, {"sold": [("a", 3), ("b", 3)]},
        )  # fmt: skip
    assert shops.ran == ["final", "close"] * 2, "of a copy"
    assert ReplayMachines().replay(stored(hand)) is None
    hand.say("done")
    assert hand.event.ending is Ending.ANSWERED
    assert ReplayMachines().replay(stored(hand)) is None
    hand.close()


def test_a_turn_whose_reward_raises_can_be_taken_back(remembering, monkeypatch):
    monkeypatch.setattr(Shop, "reward", lambda self, attempt: 1 / 0)
    hand = opened()
    hand.say(sell("a"))
    with pytest.raises(ZeroDivisionError):
        hand.say("done")
    with pytest.raises(ZeroDivisionError):
        hand.closed()
    for use in (lambda: hand.say("again"), hand.script):
        refused("/undo takes the last turn back", use)
    hand.undo()
    assert sold(hand) == [[("a", 3)]]
    hand.close()


@pytest.mark.parametrize("snapshots", [True, False])
def test_two_seats_are_stepped_taken_back_and_taken_up_again(snapshots, request):
    if snapshots:
        request.getfixturevalue("remembering")
    hand = opened(MARKET)
    assert (hand.seat, list(hand.pending)) == ("ann_0", ["ann_0", "bob_0"])
    for text in (sell("a"), "done", sell("b"), "done"):  # Ann, Ann, Bob, Bob; then the rounds go on.
        hand.say(text)
    third, shown = hand.seat, hand.messages("bob_0")
    shops.ran.clear()
    hand.undo()
    hand.undo(1)
    assert (hand.seat, list(hand.pending)) == ("bob_0", ["bob_0"])
    assert "a" not in shops.ran
    assert "b" not in shops.ran
    assert hand.rebuilt is not snapshots
    assert sold(hand) == ([[("a", 3)]] if snapshots else [[]])
    hand.say(sell("b"))
    hand.say("done")
    if snapshots:
        assert (hand.seat, hand.messages("bob_0")) == (third, shown)
        assert {event.ending for event in hand.closed().values()} == {Ending.LENGTH_LIMIT, Ending.TURN_LIMIT}
        hand.say(sell("last"))
        assert ReplayMachines().replay(stored(hand)) is None
        again = open_by_hand(MARKET, {})
        shops.ran.clear()
        again.load(stored(hand))
        assert shops.ran == ["start", "close"]
        assert {event.reward for event in again.ended.values()} == {1.0}
        again.undo()
        assert (again.seat, again.rebuilt) == (third, True)
        again.close()
    hand.close()


def test_one_seat_is_played_and_the_script_plays_the_others(remembering):
    hand = opened(MARKET, seat="bob_0")
    assert list(hand.pending) == ["bob_0"]
    assert [turn.seat for turn in hand.turns] == ["ann_0"] * 2
    before = hand.messages("ann_0")
    hand.say("nothing")
    hand.undo()
    assert (hand.seat, hand.messages("ann_0")) == ("bob_0", before)
    while not hand.ended:
        hand.say(hand.script())
    records = stored(hand)
    assert [record.episode.attempt.seat for record in records] == ["ann_0", "bob_0"]
    assert ReplayMachines().replay(records) is None
    hand.close()
    refused("seat is 'eve_0'; expected one of 'ann_0', 'bob_0'", open_by_hand, MARKET, {"seat": "eve_0"})


def test_a_record_is_taken_up_before_its_last_turn_was_cut_off(remembering):
    (record,) = shops.recorded(SHOP, [sell("a")], ending=Ending.LENGTH_LIMIT, last="I was ab")
    hand = open_by_hand(SHOP, {})
    hand.load([record])
    assert (len(hand.turns), hand.event.ending) == (1, None)
    hand.say(sell("b"))
    hand.undo()
    assert not hand.rebuilt, "a turn of today's has a snapshot"
    hand.undo()
    assert hand.rebuilt
    with pytest.raises(UsageError, match="is not what it was when this was recorded: a call: recorded"):
        hand.load(shops.with_call([record], 0, name="buy"))
    hand.close()


def test_one_seat_that_was_recorded_against_demonstrators_is_taken_up_with_them():
    start = palaestra.Start(3, 7)
    arena = palaestra.arena(MARKET, 1, seat="bob_0")
    arena.begin(0, start)
    (event,) = arena.recv(1, 60)
    while event.ending is None:
        arena.send({0: "nothing"})
        (event,) = arena.recv(1, 60)
    arena.close()
    episode = palaestra.Episode(start, event.attempt, (), event.ending, event.reward, event.parts)
    record = from_line(to_line(Record(MARKET, episode, {"seat": "bob_0"})))
    hand = open_by_hand(MARKET, {})
    hand.load([record])
    assert hand.ended["bob_0"].attempt == event.attempt
    assert (hand.hand_seat, {turn.seat for turn in hand.turns}) == ("bob_0", {"ann_0", "bob_0"})
    hand.close()


def test_an_episode_that_does_not_begin_is_broken(monkeypatch):
    def start(self, task, rng):
        raise OSError("no till")

    monkeypatch.setattr(Till, "start", start)
    with pytest.raises(Broken, match="no till"):
        opened()


def test_a_script_that_never_lets_anybody_else_speak_is_a_defect(monkeypatch):
    monkeypatch.setattr("palaestra.envs.records.by_hand.MAX_BY_RULE", 20)
    monkeypatch.setattr(Market, "max_turns", 1000)
    monkeypatch.setattr(shops, "sells", lambda messages, rng: sell("a"))
    with pytest.raises(palaestra.EnvironmentDefect, match="never ends"):
        opened(MARKET, seat="bob_0")


def test_environments_of_others_are_stepped_to_their_end_and_say_what_they_lack():
    gymnasium.register("test/Echoed-v0", "game_worlds:Echo")
    pettingzoo.register("aec", "test/counted_v0", "game_worlds:Count", kwargs={"goal": 2})
    for env_id, seats in (("test/Echoed-v0", [None]), ("test/counted-v0", ["one_0", "two_0"])):
        hand = opened(env_id)
        for closed in (hand.closed, hand.records, hand.undo, hand.attempt):
            with pytest.raises(UsageError, match="somebody else's environment: it shows no task"):
                closed(hand.seat) if closed == hand.attempt else closed()
        while not hand.ended:
            (heard,) = hand.event.messages
            word = heard["content"].split()[-1]
            hand.say(word if seats == [None] else str(int(word) + 1))
        assert [event.parts["success"] for event in hand.closed().values()] == [1.0] * len(seats)
        records = stored(hand)
        assert [record.episode.attempt.messages[0] for record in records] == [hand.messages(seat)[0] for seat in seats]
        hand.close()


def test_a_class_is_stepped_without_registering_it():
    hand = ByHand(Machine(spec_of(Shop())), "Shop", {})
    hand.open(1, 3)
    hand.say(sell("last"))
    assert hand.event.attempt.answer == "all"
    hand.close()
