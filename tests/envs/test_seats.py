"""Many games at once: how seats find each other, how a game ends for all of them, and what breaks it."""

import threading
import time

import game_worlds
import pettingzoo
import pytest

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Ending, Start
from palaestra.errors import UnknownId, UsageError
from palaestra.formats import ParsedCall, hermes
from palaestra.protocols import Arena, Completion

DUEL, INLINE = "test/duel_v0", "test/inline_duel_v0"
LEFT, RIGHT = "left_0", "right_0"


def call(name, **arguments):
    return hermes.render([ParsedCall(name, arguments)])


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
    from palaestra import registry

    for known in ("test/duel-v0", "test/inline_duel-v0"):
        registry._games.pop(known, None)
        registry._demonstrators.pop(known, None)
        pettingzoo.aec_registry.pop(known, None)
        pettingzoo.parallel_registry.pop(known, None)


@pytest.fixture(params=[DUEL, INLINE])
def arena(request):
    opened = palaestra.arena(request.param, 4)
    yield opened
    opened.close()


def begin(arena, task=0, seed=0, slots=(0, 1)):
    for slot, seat in zip(slots, arena.seats, strict=True):
        arena.begin(slot, Start(task, seed, seat=seat))
    return {event.slot: event for event in arena.recv(2, 60)}


def test_the_arena_is_an_arena(arena):
    assert isinstance(arena, Arena)
    assert arena.seats == (LEFT, RIGHT)
    assert arena.task_count == 2**31
    assert not arena.ordered


def test_a_game_opens_when_its_last_seat_is_taken(arena):
    arena.begin(0, Start(3, 1, seat=LEFT))
    assert arena.recv(1, 0.02) == []
    arena.begin(3, Start(3, 1, seat=RIGHT))
    events = arena.recv(2, 60)
    assert [(event.slot, event.start.seat) for event in events] == [(0, LEFT), (3, RIGHT)]
    assert [message["role"] for message in events[0].messages] == ["system", "user"]
    assert [message["role"] for message in events[1].messages] == ["user"]
    assert len(events[0].tools) in (2, 4)
    assert events[1].tools == ()


def test_games_of_the_same_task_and_seed_do_not_mix(arena):
    begin(arena, slots=(0, 1))
    begin(arena, slots=(2, 3))
    arena.send({0: "first", 3: "second"})
    assert arena.recv(1, 0.02) == []
    arena.send({1: "reply"})
    heard = {event.slot: event.messages[-1]["content"] for event in arena.recv(2, 60)}
    assert heard == {0: "The other said reply", 1: "The other said first"}


def test_two_games_of_the_same_task_and_seed_may_gather_at_once(arena):
    for slot, seat in enumerate((LEFT, LEFT, RIGHT, RIGHT)):
        arena.begin(slot, Start(7, 7, seat=seat))
    events = []
    while len(events) < 4:
        events += arena.recv(4, 60)
    assert sorted(event.slot for event in events) == [0, 1, 2, 3]


def test_seats_hear_each_other_only_after_all_have_spoken(arena):
    begin(arena)
    arena.send({0: "mine"})
    assert arena.recv(1, 0.02) == []
    arena.send({1: "yours"})
    assert len(arena.recv(2, 60)) == 2
    arena.send({0: "a", 1: "longer"})
    ended = {event.start.seat: event for event in arena.recv(2, 60)}
    assert ended[LEFT].ending is ended[RIGHT].ending is Ending.ANSWERED
    assert (ended[LEFT].reward, ended[RIGHT].reward) == (0.0, 1.0)
    assert ended[LEFT].attempt.answer == "a"
    assert ended[RIGHT].attempt.turns == 2


def test_a_seat_that_calls_a_tool_goes_on_alone(arena):
    begin(arena)
    arena.send({0: call("echo", text="hello"), 1: "done"})
    events = arena.recv(1, 60)
    assert [(event.slot, event.messages[-1]["content"]) for event in events] == [(0, "hello")]
    arena.send({0: "so"})
    assert len(arena.recv(2, 60)) == 2


def test_a_seat_has_only_its_own_tools(arena):
    begin(arena)
    arena.send({1: call("echo", text="mine?")})
    assert "there are no tools here" in arena.recv(1, 60)[0].messages[-1]["content"]


def test_a_seat_out_of_tokens_ends_the_game_and_the_others_are_not_blamed(arena):
    begin(arena)
    arena.send({1: "waiting"})
    arena.finish(0, Ending.LENGTH_LIMIT, "I was about to")
    ended = {event.start.seat: event for event in arena.recv(2, 60)}
    assert ended[LEFT].ending is Ending.LENGTH_LIMIT
    assert ended[LEFT].fault == ""
    assert ended[LEFT].attempt.answer is None
    assert ended[LEFT].attempt.messages[-1]["content"] == "I was about to"
    assert ended[LEFT].reward == -0.5
    assert ended[RIGHT].ending is Ending.TURN_LIMIT
    assert "left_0 could not go on" in ended[RIGHT].fault
    assert ended[RIGHT].reward == 0.5
    assert ended[RIGHT].parts == {"success": 0.0, "margin": 1.0}


def test_an_ending_waits_for_the_seat_whose_agent_is_thinking(arena):
    begin(arena)
    arena.finish(0, Ending.LENGTH_LIMIT)
    assert arena.recv(1, 0.02) == []
    arena.send({1: "too late"})
    assert {event.slot: event.ending for event in arena.recv(2, 60)} == {0: Ending.LENGTH_LIMIT, 1: Ending.TURN_LIMIT}


def test_a_game_breaks_for_all_and_can_be_begun_again(arena):
    begin(arena)
    arena.send({0: call("fall"), 1: "x"})
    ended = arena.recv(2, 60)
    assert [event.ending for event in ended] == [Ending.BROKEN] * 2
    assert all("the tower fell" in event.fault and event.reward is None for event in ended)
    assert len(begin(arena)) == 2


def test_a_tool_that_never_returns_breaks_its_game_alone():
    arena = palaestra.arena(DUEL, 4)
    begin(arena, task=0, slots=(0, 1))
    begin(arena, task=1, slots=(2, 3))
    arena.send({0: call("hang"), 1: "x", 2: "fine", 3: "fine"})
    found = {}
    while len(found) < 4:
        found |= {event.slot: event.ending for event in arena.recv(1, 60)}
    assert found == {0: Ending.BROKEN, 1: Ending.BROKEN, 2: None, 3: None}
    arena.close()


def test_a_slot_that_is_begun_again_ends_the_game_for_the_others(arena):
    begin(arena)
    arena.send({1: "waiting"})
    arena.begin(0, Start(5, 5, seat=LEFT))
    events = arena.recv(1, 60)
    assert [(event.slot, event.ending) for event in events] == [(1, Ending.TURN_LIMIT)]
    assert "taken away" in events[0].fault
    arena.begin(1, Start(5, 5, seat=RIGHT))
    assert len(arena.recv(2, 60)) == 2


def test_a_seat_that_gives_up_before_the_game_opens_is_forgotten(arena):
    arena.begin(0, Start(1, 1, seat=LEFT))
    arena.begin(0, Start(2, 2, seat=LEFT))
    arena.begin(1, Start(1, 1, seat=RIGHT))
    assert arena.recv(1, 0.02) == []
    arena.begin(2, Start(2, 2, seat=RIGHT))
    assert [event.start.task for event in arena.recv(2, 60)] == [2, 2]


def test_seats_that_can_never_meet_are_an_error_and_no_endless_wait(arena):
    for slot in range(4):
        arena.begin(slot, Start(slot, slot, seat=LEFT))
    with pytest.raises(UsageError, match="waits for right_0, and every slot is taken"):
        arena.recv(1, 1)


def test_a_seat_that_nobody_takes_is_an_error_after_our_deadline():
    arena = palaestra.arena(INLINE, 4, timeout=0.05)
    with pytest.raises(UsageError, match=r"waits for right_0, and 0\.05 s have passed"):
        list(play(Agent(ScriptedPolicy(words)), arena, [Start(0, 0, seat=LEFT)]))


@pytest.mark.parametrize("slots", [2, 3, 5, 12])
def test_many_games_play_in_any_number_of_slots(slots):
    arena = palaestra.arena(DUEL, slots, ordered=True)
    starts = [Start(task, task, seat=seat) for task in range(15) for seat in arena.seats]
    episodes = list(play(Agent(ScriptedPolicy(words)), arena, starts))
    assert {(episode.start.task, episode.start.seat) for episode in episodes} == {(s.task, s.seat) for s in starts}
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED}
    arena.close()


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


@pytest.mark.parametrize("game", [DUEL, INLINE])
def test_an_engine_that_fails_once_makes_the_whole_game_be_played_again(game):
    arena = palaestra.arena(game, 4)
    starts = [Start(task, task, seat=seat) for task in range(4) for seat in arena.seats]
    episodes = list(play(Agent(Flaky()), arena, starts))
    assert len(episodes) == 8
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED}
    arena.close()


def test_the_state_of_each_slot_is_guarded(arena):
    with pytest.raises(UsageError, match="slot 9 does not exist"):
        arena.begin(9, Start(0, 0, seat=LEFT))
    with pytest.raises(UsageError, match="send: slot 0 is free"):
        arena.send({0: "x"})
    with pytest.raises(UsageError, match="one of 'left_0', 'right_0', or open it with seat=NAME"):
        arena.begin(0, Start(0, 0))
    begin(arena)
    with pytest.raises(UsageError, match="slot 0 got int"):
        arena.send({0: 3})
    with pytest.raises(UsageError, match=r"finish\(ANSWERED\)"):
        arena.finish(0, Ending.ANSWERED)
    arena.send({0: "x"})
    with pytest.raises(UsageError, match=r"send: slot 0 is busy: .* other seats of its game are at it"):
        arena.send({0: "y"})


def test_an_arena_that_holds_no_game_is_refused():
    with pytest.raises(UsageError, match="found 1 slots; expected at least 2, one for each of left_0, right_0"):
        palaestra.arena(DUEL, 1)
    for game, options in ((DUEL, {}), ("palaestra/debate_v0", {"seat": "judge_0"})):
        with pytest.raises(UsageError, match=r"expected at least 1, how many episodes"):
            palaestra.arena(game, 0, **options)
    with pytest.raises(UsageError, match=r"test/duel_v0 takes no option 'colour'; it takes split"):
        palaestra.arena(DUEL, 2, colour="red")
    with pytest.raises(UnknownId, match=r"test/duel-v0"):
        palaestra.arena("test/dual-v0", 2)


def test_a_task_that_does_not_exist_is_named():
    arena = palaestra.arena(INLINE, 2)
    arena.begin(0, Start(2**31, 0, seat=LEFT))
    with pytest.raises(UsageError, match="task 2147483648 does not exist"):
        arena.begin(1, Start(2**31, 0, seat=RIGHT))


def test_a_prefix_follows_a_seats_first_message():
    arena = palaestra.arena(INLINE, 2)
    told = ({"role": "user", "content": "Last time you lost."},)
    arena.begin(0, Start(0, 0, seat=LEFT, prefix=told))
    arena.begin(1, Start(0, 0, seat=RIGHT))
    left, right = arena.recv(2, 60)
    assert left.messages[-1]["content"] == "Last time you lost."
    assert len(left.messages) == 3
    assert len(right.messages) == 1


def test_one_seat_against_demonstrators_is_an_ordinary_episode():
    game = "palaestra/debate_v0"
    arena = palaestra.arena(game, 3, seat="judge_0", split="eval")
    assert arena.seats == ()
    assert arena.ordered
    episodes = list(play(Agent(ScriptedPolicy(palaestra.demonstrator(game))), arena, [Start(t, t) for t in range(9)]))
    assert [episode.reward for episode in episodes] == [1.0] * 9
    assert all(episode.start.seat is None for episode in episodes)
    again = palaestra.arena(game, 3, seat="judge_0", split="eval")
    repeated = list(play(Agent(ScriptedPolicy(palaestra.demonstrator(game))), again, [Start(t, t) for t in range(9)]))
    assert [e.attempt.messages for e in repeated] == [e.attempt.messages for e in episodes]
    with pytest.raises(UsageError, match=r"seat is 'jury_0'; expected one of"):
        palaestra.arena(game, 3, seat="jury_0")
    with pytest.raises(UsageError, match="has no demonstrator"):
        palaestra.arena(INLINE, 3, seat=LEFT)


def test_partners_say_the_same_for_the_same_task_and_seed_and_differ_by_seat():
    palaestra.register_game(INLINE, "game_worlds:InlineDuel", demonstrator="game_worlds:babble")
    heard = []
    for seat in (LEFT, RIGHT, LEFT):
        arena = palaestra.arena(INLINE, 3, seat=seat)
        episodes = play(Agent(ScriptedPolicy(words)), arena, [Start(task, 5) for task in range(6)])
        heard.append({e.start.task: e.attempt.messages[-2]["content"] for e in episodes})
    assert heard[0] == heard[2]
    assert len({*heard[0].values(), *heard[1].values()}) == 12


def test_a_long_answer_ends_the_game_of_one_seat_at_its_own_limit():
    arena = palaestra.arena("palaestra/solver_critic_v0", 2, seat="solver_0")
    arena.begin(0, Start(0, 0))
    arena.recv(1, 60)
    arena.finish(0, Ending.LENGTH_LIMIT, "so long")
    event = arena.recv(1, 60)[0]
    assert event.ending is Ending.LENGTH_LIMIT
    assert event.fault == ""
    assert event.reward == 0.0


def test_threads_end_with_the_arena():
    before = threading.active_count()
    arena = palaestra.arena(DUEL, 8)
    for task in range(4):
        begin(arena, task=task, slots=(2 * task, 2 * task + 1))
    arena.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
