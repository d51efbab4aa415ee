"""Many games at once: how seats find each other, how a game ends for all of them, and what breaks it."""

import threading

import game_worlds
import pytest
from driven import becomes, begun, call, heard, refused, seated

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Ending, Start
from palaestra.errors import UnknownId, UsageError
from palaestra.protocols import Arena, Completion

DUEL, INLINE = "test/duel_v0", "test/inline_duel_v0"
LEFT, RIGHT = "left_0", "right_0"


def words(messages, rng):
    """Longer with the number asked about, so that games differ."""
    return "word " * (1 + len(messages) % 3)


@pytest.fixture(autouse=True)
def duels():
    game_worlds.gate.clear()
    palaestra.register_game(DUEL, "game_worlds:Duel")
    palaestra.register_game(INLINE, "game_worlds:InlineDuel")
    yield
    game_worlds.gate.set()


@pytest.fixture(params=[DUEL, INLINE])
def table(request, arena):
    """Room for two games."""
    return arena(request.param, 4)


def endings(events):
    return {event.start.seat: event for event in events}


def test_a_game_opens_when_its_last_seat_is_taken(table):
    assert isinstance(table, Arena)
    assert (table.seats, table.task_count, table.ordered) == ((LEFT, RIGHT), 2**31, False)
    table.begin(0, Start(3, 1, seat=LEFT, prefix=({"role": "user", "content": "Last time you lost."},)))
    assert table.recv(1, 0.02) == []
    table.begin(3, Start(3, 1, seat=RIGHT))
    left, right = table.recv(2, 60)
    assert [(event.slot, event.start.seat) for event in (left, right)] == [(0, LEFT), (3, RIGHT)]
    assert [message["role"] for message in left.messages] == ["system", "user", "user"]
    assert left.messages[-1]["content"] == "Last time you lost."
    assert [message["role"] for message in right.messages] == ["user"]
    assert (len(left.tools) in (2, 4), right.tools) == (True, ())


def test_games_of_the_same_task_and_seed_gather_at_once_and_do_not_mix(table):
    for slot, seat in enumerate((LEFT, LEFT, RIGHT, RIGHT)):
        table.begin(slot, Start(7, 7, seat=seat))
    assert heard(table, 4).keys() == {0, 1, 2, 3}
    table.send({0: "first", 3: "second"})
    assert table.recv(1, 0.02) == []
    table.send({2: "reply"})
    said = {event.slot: event.messages[-1]["content"] for event in table.recv(2, 60)}
    assert said == {0: "The other said reply", 2: "The other said first"}


def test_seats_hear_each_other_only_after_all_have_spoken(table):
    seated(table)
    table.send({0: "mine"})
    assert table.recv(1, 0.02) == []
    table.send({1: "yours"})
    assert len(table.recv(2, 60)) == 2
    table.send({0: "a", 1: "longer"})
    ended = endings(table.recv(2, 60))
    assert [(event.ending, event.reward) for event in ended.values()] == [
        (Ending.ANSWERED, 0.0), (Ending.ANSWERED, 1.0)
    ]  # fmt: skip
    assert (ended[LEFT].attempt.answer, ended[RIGHT].attempt.turns) == ("a", 2)


def test_a_seat_that_calls_a_tool_goes_on_alone_and_has_only_its_own(table):
    seated(table)
    table.send({0: call("echo", text="hello"), 1: "done"})
    events = table.recv(1, 60)
    assert [(event.slot, event.messages[-1]["content"]) for event in events] == [(0, "hello")]
    table.send({0: "so"})
    assert len(table.recv(2, 60)) == 2
    table.send({1: call("echo", text="mine?")})
    assert "there are no tools here" in table.recv(1, 60)[0].messages[-1]["content"]


def test_a_seat_out_of_tokens_ends_the_game_once_the_others_have_thought_and_they_are_not_blamed(table):
    seated(table)
    table.finish(0, Ending.LENGTH_LIMIT, "I was about to")
    assert table.recv(1, 0.02) == []
    table.send({1: "too late"})
    ended = endings(table.recv(2, 60))
    assert [(event.ending, event.reward) for event in ended.values()] == [
        (Ending.LENGTH_LIMIT, -0.5), (Ending.TURN_LIMIT, 0.5)
    ]  # fmt: skip
    left, right = ended[LEFT], ended[RIGHT]
    assert (left.fault, left.attempt.answer, left.attempt.messages[-1]["content"]) == ("", None, "I was about to")
    assert "left_0 could not go on" in right.fault
    assert right.parts == {"success": 0.0, "margin": 1.0}


def test_a_game_breaks_for_all_and_can_be_begun_again(table):
    seated(table)
    table.send({0: call("fall"), 1: "x"})
    ended = table.recv(2, 60)
    assert [event.ending for event in ended] == [Ending.BROKEN] * 2
    assert all("the tower fell" in event.fault and event.reward is None for event in ended)
    assert len(seated(table)) == 2


def test_a_tool_that_never_returns_breaks_its_game_alone(arena):
    opened = arena(DUEL, 4)
    seated(opened)
    seated(opened, task=1, slots=(2, 3))
    opened.send({0: call("hang"), 1: "x", 2: "fine", 3: "fine"})
    found = {slot: event.ending for slot, event in heard(opened, 4).items()}
    assert found == {0: Ending.BROKEN, 1: Ending.BROKEN, 2: None, 3: None}


def test_a_slot_that_is_begun_again_ends_the_game_for_the_others(table):
    seated(table)
    table.send({1: "waiting"})
    table.begin(0, Start(5, 5, seat=LEFT))
    events = table.recv(1, 60)
    assert [(event.slot, event.ending) for event in events] == [(1, Ending.TURN_LIMIT)]
    assert "taken away" in events[0].fault
    table.begin(1, Start(5, 5, seat=RIGHT))
    assert len(table.recv(2, 60)) == 2


def test_a_seat_that_gives_up_before_the_game_opens_is_forgotten(table):
    table.begin(0, Start(1, 1, seat=LEFT))
    table.begin(0, Start(2, 2, seat=LEFT))
    table.begin(1, Start(1, 1, seat=RIGHT))
    assert table.recv(1, 0.02) == []
    table.begin(2, Start(2, 2, seat=RIGHT))
    assert [event.start.task for event in table.recv(2, 60)] == [2, 2]


def test_seats_that_can_never_meet_are_an_error_and_no_endless_wait(table):
    for slot in range(4):
        table.begin(slot, Start(slot, slot, seat=LEFT))
    refused("waits for right_0, and every slot is taken", table.recv, 1, 1)


def test_a_seat_that_nobody_takes_is_an_error_after_our_deadline(arena):
    opened = arena(INLINE, 4, timeout=0.05)
    with pytest.raises(UsageError, match=r"waits for right_0, and 0\.05 s have passed"):
        list(play(Agent(ScriptedPolicy(words)), opened, [Start(0, 0, seat=LEFT)]))


@pytest.mark.parametrize("slots", [2, 5, 12])
def test_many_games_play_in_any_number_of_slots(arena, slots):
    opened = arena(DUEL, slots, ordered=True)
    starts = [Start(task, task, seat=seat) for task in range(15) for seat in opened.seats]
    episodes = list(play(Agent(ScriptedPolicy(words)), opened, starts))
    assert {(episode.start.task, episode.start.seat) for episode in episodes} == {(s.task, s.seat) for s in starts}
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED}


class Flaky(ScriptedPolicy):
    """Answers one seat's first request with a fault."""

    def __init__(self):
        super().__init__(words)
        self.faults = 1

    def submit(self, request):
        ticket = super().submit(request)
        if request.start.seat == RIGHT and self.faults:
            self.faults -= 1
            self.bad = ticket
        return ticket

    def poll(self, timeout=0.0):
        return [
            Completion(found.ticket, fault="gone") if found.ticket == getattr(self, "bad", None) else found
            for found in super().poll(timeout)
        ]


def test_an_engine_that_fails_once_makes_the_whole_game_be_played_again(table):
    starts = [Start(task, task, seat=seat) for task in range(4) for seat in table.seats]
    episodes = list(play(Agent(Flaky()), table, starts))
    assert [episode.ending for episode in episodes] == [Ending.ANSWERED] * 8


def test_the_state_of_each_slot_is_guarded(table):
    refused("slot 9 does not exist", table.begin, 9, Start(0, 0, seat=LEFT))
    refused("send: slot 0 is free", table.send, {0: "x"})
    refused("one of 'left_0', 'right_0', or open it with seat=NAME", table.begin, 0, Start(0, 0))
    table.begin(2, Start(2**31, 0, seat=LEFT))
    refused("task 2147483648 does not exist", table.begin, 3, Start(2**31, 0, seat=RIGHT))
    seated(table)
    refused("slot 0 got int", table.send, {0: 3})
    refused(r"finish\(ANSWERED\)", table.finish, 0, Ending.ANSWERED)
    table.send({0: "x"})
    refused(r"send: slot 0 is busy: .* other seats of its game are at it", table.send, {0: "y"})


def test_an_arena_that_holds_no_game_is_refused():
    for game, slots, options, error, said in (
        (DUEL, 1, {}, UsageError, "found 1 slots; expected at least 2, one for each of left_0, right_0"),
        (DUEL, 0, {}, UsageError, "expected at least 1, how many episodes"),
        ("palaestra/debate_v0", 0, {"seat": "judge_0"}, UsageError, "expected at least 1, how many episodes"),
        ("palaestra/debate_v0", 3, {"seat": "jury_0"}, UsageError, "seat is 'jury_0'; expected one of"),
        (INLINE, 3, {"seat": LEFT}, UsageError, "has no demonstrator"),
        (DUEL, 2, {"colour": "red"}, UsageError, "test/duel_v0 takes no option 'colour'; it takes split"),
        ("test/dual-v0", 2, {}, UnknownId, "test/duel_v0"),
    ):
        with pytest.raises(error, match=said):
            palaestra.arena(game, slots, **options)


def test_one_seat_against_demonstrators_is_an_ordinary_episode_that_repeats(arena):
    game, seen = "palaestra/debate_v0", []
    for _ in range(2):
        opened = arena(game, 3, seat="judge_0", split="eval")
        assert (opened.seats, opened.ordered) == ((), True)
        agent = Agent(ScriptedPolicy(palaestra.demonstrator(game)))
        episodes = list(play(agent, opened, [Start(task, task) for task in range(9)]))
        assert [(episode.reward, episode.start.seat) for episode in episodes] == [(1.0, None)] * 9
        seen.append([episode.attempt.messages for episode in episodes])
    assert seen[0] == seen[1]


def test_partners_say_the_same_for_the_same_task_and_seed_and_differ_by_seat():
    palaestra.register_game(INLINE, "game_worlds:InlineDuel", demonstrator="game_worlds:babble")
    heard = []
    for seat in (LEFT, RIGHT, LEFT):
        arena = palaestra.arena(INLINE, 3, seat=seat)
        episodes = play(Agent(ScriptedPolicy(words)), arena, [Start(task, 5) for task in range(6)])
        heard.append({e.start.task: e.attempt.messages[-2]["content"] for e in episodes})
    assert heard[0] == heard[2]
    assert len({*heard[0].values(), *heard[1].values()}) == 12


def test_a_long_answer_ends_the_game_of_one_seat_at_its_own_limit(arena):
    opened = begun(arena("palaestra/solver_critic_v0", 1, seat="solver_0"))
    opened.finish(0, Ending.LENGTH_LIMIT, "so long")
    event = opened.recv(1, 60)[0]
    assert (event.ending, event.fault, event.reward) == (Ending.LENGTH_LIMIT, "", 0.0)


def test_threads_end_with_the_arena():
    before = threading.active_count()
    opened = palaestra.arena(DUEL, 8)
    for task in range(4):
        seated(opened, task=task, slots=(2 * task, 2 * task + 1))
    opened.close()
    assert becomes(lambda: threading.active_count() <= before)
