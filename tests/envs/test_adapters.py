"""Environments of others in `palaestra.arena`: Gymnasium's of text, PettingZoo's of either kind, and the refusals."""

import logging
import subprocess
import sys
import time

import game_worlds
import gymnasium
import pettingzoo
import pytest

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Ending, Start
from palaestra.errors import EnvironmentDefect, UnknownId, UsageError
from palaestra.protocols import Arena

ECHO, JUDGED, NUMBERS = "test/Echo-v0", "test/Judged-v0", "test/Numbers-v0"
COUNT, TOGETHER = "test/count_v0", "test/together_v0"


@pytest.fixture(autouse=True)
def foreigners():
    game_worlds.gate.clear()
    for env_id in (ECHO, JUDGED, NUMBERS):
        gymnasium.register(env_id, f"game_worlds:{env_id[5:-3]}", disable_env_checker=True)
    gymnasium.register("test/Graded-v0", "game_worlds:Echo", reward_threshold=2.0, kwargs={"turns": 2})
    pettingzoo.register("aec", COUNT, "game_worlds:Count")
    pettingzoo.register("parallel", TOGETHER, "game_worlds:Together")
    yield
    game_worlds.gate.set()
    for env_id in (ECHO, JUDGED, NUMBERS, "test/Graded-v0"):
        gymnasium.registry.pop(env_id)
    pettingzoo.aec_registry.pop("test/count-v0")
    pettingzoo.parallel_registry.pop("test/together-v0")


def say_it(messages, rng):
    return str(messages[-1]["content"]).split()[-1]


def one(arena, *turns, task=0):
    """Play these turns in slot 0; the event that ends it."""
    arena.begin(0, Start(task, 1))
    event = arena.recv(1, 60)[0]
    for turn in turns:
        assert event.ending is None
        arena.send({0: turn})
        event = arena.recv(1, 60)[0]
    return event


def test_a_gymnasium_environment_of_text_is_an_arena():
    arena = palaestra.arena(ECHO, 4, ordered=True)
    assert isinstance(arena, Arena)
    assert arena.slots == 4
    assert arena.seats == ()
    assert arena.ordered
    episodes = list(play(Agent(ScriptedPolicy(say_it)), arena, [Start(n, n) for n in range(20)]))
    assert [episode.ending for episode in episodes] == [Ending.ANSWERED] * 20
    assert {episode.reward for episode in episodes} == {1.0}
    first = episodes[0]
    assert first.parts == {"success": 1.0, "reward": 1.0}
    assert [message["role"] for message in first.attempt.messages] == ["user", "assistant"]
    assert first.attempt.task.id == f"train/{first.start.task}"
    assert first.attempt.answer == first.attempt.messages[-1]["content"]
    arena.close()


def opening(arena, task):
    arena.begin(0, Start(task, 99))
    return arena.recv(1, 60)[0].messages[0]["content"]


def test_the_task_decides_the_problem_and_splits_take_different_seeds():
    train, again, held_out = (palaestra.arena(ECHO, 1, split=split) for split in ("train", "train", "eval"))
    assert [opening(train, n) for n in range(5)] == [opening(again, n) for n in range(5)]
    word = gymnasium.make(ECHO, disable_env_checker=True)
    assert opening(train, 3) == word.reset(seed=6)[0]
    assert opening(held_out, 3) == word.reset(seed=7)[0]


def test_an_environment_that_knows_splits_and_success_is_believed():
    arena = palaestra.arena(JUDGED, 1, split="eval")
    assert opening(arena, 0).startswith("eval: Say")
    event = one(arena, opening(arena, 0).split()[-1])
    assert event.parts == {"success": 1.0, "reward": 0.0}
    assert event.reward == 0.0
    assert one(arena, "wrong").parts == {"success": 0.0, "reward": -1.0}


def test_success_is_a_threshold_where_the_environment_does_not_say():
    arena = palaestra.arena("test/Graded-v0", 1)
    word = opening(arena, 0).split()[-1]
    assert one(arena, word, "x").parts == {"success": 0.0, "reward": 1.0}
    assert one(arena, word, word).parts == {"success": 1.0, "reward": 2.0}
    assert one(palaestra.arena("test/Graded-v0", 1, success_at=1), word, "x").parts["success"] == 1.0
    assert one(palaestra.arena(ECHO, 1), "x").parts["success"] == 0.0


def test_a_turn_outside_the_space_is_answered_and_not_passed_on():
    arena = palaestra.arena(ECHO, 1)
    event = one(arena, "a" * 21)
    assert "this turn is not legal here; write 1 to 20 characters" in event.messages[0]["content"]
    event = one(arena, *["?!"] * 9)
    assert event.ending is Ending.TURN_LIMIT
    assert event.reward == 0.0


def test_a_step_that_never_returns_is_broken_and_does_not_starve_the_others():
    arena = palaestra.arena(ECHO, 3, timeout=50, max_workers=1)
    for slot in range(3):
        arena.begin(slot, Start(slot, 0))
    opened = []
    while len(opened) < 3:
        opened += arena.recv(1, 60)
    arena.send({0: "hang", 1: "x", 2: "y"})
    (job,) = arena._tables[0].out[0].works
    until = time.monotonic() + 60
    while job.begun is None and time.monotonic() < until:
        time.sleep(0.005)
    job.begun -= 50.0  # It has hung for so long, and a busy machine takes nothing from the others.
    ended = {}
    while len(ended) < 3:
        ended |= {event.slot: event for event in arena.recv(1, 60)}
    assert [ended[slot].ending for slot in range(3)] == [Ending.BROKEN, Ending.ANSWERED, Ending.ANSWERED]
    assert ended[0].reward is None
    assert "test/Echo-v0: step gave no result in 50 s" in ended[0].fault
    game_worlds.gate.set()
    assert one(arena, "x").ending is Ending.ANSWERED
    arena.close()


def test_a_crash_of_the_agents_making_earns_nothing_and_is_not_broken(caplog):
    arena = palaestra.arena(ECHO, 1)
    with caplog.at_level(logging.WARNING, logger="palaestra.envs"):
        event = one(arena, "crash")
    assert event.ending is Ending.TURN_LIMIT
    assert event.parts == {"success": 0.0, "reward": 0.0}
    assert "ZeroDivisionError" in caplog.text
    said = "Error: the environment failed on this turn: ZeroDivisionError: crashed by the agent"
    assert event.attempt.messages[-1]["content"] == event.messages[-1]["content"] == said
    assert event.fault == "", "an episode with a fault is left out of training"
    assert one(arena, "x").ending is Ending.ANSWERED


def test_an_environment_that_says_it_is_broken_is_believed():
    event = one(palaestra.arena(ECHO, 1), "gone")
    assert (event.ending, event.reward) == (Ending.BROKEN, None)
    assert "the server is gone" in event.fault


def test_a_step_of_another_shape_is_the_authors_defect_whatever_the_agent_did():
    with pytest.raises(EnvironmentDefect, match=r"Echo-v0\.step returned 4 values; expected observation, reward, term"):
        one(palaestra.arena(ECHO, 1), "old")
    arena = palaestra.arena(TOGETHER, 2)
    for slot, seat in enumerate(arena.seats):
        arena.begin(slot, Start(0, 0, seat=seat))
    arena.recv(2, 60)
    arena.send({0: "bare", 1: "x"})
    with pytest.raises(EnvironmentDefect, match=r"together_v0\.step returned '1\.0'; expected a dict by seat"):
        arena.recv(2, 60)


def test_a_reset_that_fails_is_broken():
    episodes = list(play(Agent(ScriptedPolicy(say_it)), palaestra.arena(ECHO, 2, slow=-1.0), [Start(0, 0)]))
    assert [episode.ending for episode in episodes] == [Ending.BROKEN]
    assert "RuntimeError: no server" in episodes[0].fault


def test_a_reward_that_is_no_number_is_the_authors_defect():
    with pytest.raises(EnvironmentDefect, match="gave the reward nan"):
        one(palaestra.arena(ECHO, 1), "nan")


def test_what_is_no_text_is_refused():
    with pytest.raises(UsageError, match=r"CartPole-v1 observes Box.* and acts Discrete.*expected text in both"):
        palaestra.arena("CartPole-v1", 2)
    with pytest.raises(UsageError, match="observes Discrete"):
        palaestra.arena(NUMBERS, 2)
    pettingzoo.register("parallel", "test/mute_v0", "game_worlds:Mute")
    with pytest.raises(UsageError, match=r"test/mute_v0, one_0, observes TextSpace.* acts Discrete"):
        palaestra.arena("test/mute_v0", 2)
    pettingzoo.parallel_registry.pop("test/mute-v0")
    with pytest.raises(UnknownId, match="no environment is registered as 'test/Ecko-v0'"):
        palaestra.arena("test/Ecko-v0", 2)
    with pytest.raises(UsageError, match="cannot be made with"):
        palaestra.arena(ECHO, 2, colour="red")
    with pytest.raises(UsageError, match="one seat; expected Start"):
        palaestra.arena(ECHO, 2).begin(0, Start(0, 0, seat="one_0"))


def count_up(messages, rng):
    return str(int(messages[-1]["content"]) + 1)


def starts(arena, tasks):
    return [Start(task, 50 + task, seat=seat) for task in range(tasks) for seat in arena.seats]


def test_a_foreign_aec_game_is_played_seat_by_seat():
    arena = palaestra.arena(COUNT, 6)
    assert arena.seats == ("one_0", "two_0")
    with pytest.raises(UsageError, match=r"to be one of 'one_0', 'two_0'$"):
        arena.begin(0, Start(0, 0))
    episodes = list(play(Agent(ScriptedPolicy(count_up)), arena, starts(arena, 9)))
    assert len(episodes) == 18
    assert {episode.ending for episode in episodes} == {Ending.TURN_LIMIT}
    assert {episode.reward for episode in episodes} == {2.0}
    assert {episode.fault for episode in episodes} == {""}
    assert {episode.attempt.turns for episode in episodes} == {2}
    arena.close()


def test_a_seat_whose_play_ends_early_is_reported_with_the_rest():
    arena = palaestra.arena(COUNT, 2)
    for slot, seat in enumerate(arena.seats):
        arena.begin(slot, Start(0, 0, seat=seat))
    event = arena.recv(1, 60)[0]
    assert event.start.seat == "one_0"
    arena.send({0: "wrong"})
    while (event := arena.recv(1, 60)[0]).ending is None:
        assert event.start.seat == "two_0"
        arena.send({1: count_up(event.messages, None)})
    assert event.start.seat in arena.seats
    arena.close()


def test_a_crash_in_a_game_is_laid_to_the_seat_that_acted():
    arena = palaestra.arena(COUNT, 2)
    for slot, seat in enumerate(arena.seats):
        arena.begin(slot, Start(0, 0, seat=seat))
    arena.recv(1, 60)
    arena.send({0: "crash"})
    ended = {event.start.seat: event for event in arena.recv(2, 60)}
    assert {event.ending for event in ended.values()} == {Ending.TURN_LIMIT}
    assert ended["one_0"].fault == ""
    assert "failed on the turn of one_0" in ended["two_0"].fault
    assert "KeyError: 'crash'" in ended["one_0"].attempt.messages[-1]["content"]
    assert "KeyError" not in str(ended["two_0"].attempt.messages)
    assert all(event.parts["success"] == 0 for event in ended.values())


def test_a_foreign_parallel_game_steps_when_all_have_spoken():
    arena = palaestra.arena(TOGETHER, 2, split="eval")
    for slot, seat in enumerate(arena.seats):
        arena.begin(slot, Start(4, 0, seat=seat))
    events = arena.recv(2, 60)
    assert [event.messages[0]["content"] for event in events] == ["seed 9", "seed 9"]
    arena.send({0: "tree"})
    assert arena.recv(1, 0.05) == []
    arena.send({1: "tree"})
    assert len(arena.recv(2, 60)) == 2
    arena.send({0: "sea", 1: "sun"})
    ended = arena.recv(2, 60)
    assert [event.reward for event in ended] == [1.0, 1.0]
    assert [event.parts["success"] for event in ended] == [0.0, 0.0]


def test_our_own_games_come_through_pettingzoos_door_with_the_same_messages():
    kwargs = dict(pettingzoo.spec("aec", "palaestra/negotiation_v0").kwargs)
    pettingzoo.register("aec", "test/bargain_v0", "palaestra.envs.arena.pettingzoo:make_aec", kwargs=kwargs)
    try:
        ours, theirs = palaestra.arena("palaestra/negotiation_v0", 2), palaestra.arena("test/bargain_v0", 2)
        assert theirs.task_count == 2**30
        rule = palaestra.demonstrator("palaestra/negotiation_v0")
        for arena in (ours, theirs):
            episodes = list(play(Agent(ScriptedPolicy(rule)), arena, starts(arena, 3)))
            assert {episode.ending for episode in episodes} == {Ending.ANSWERED}
            assert all(episode.reward == episode.parts["success"] or arena is theirs for episode in episodes)
            assert {message["role"] for e in episodes for message in e.attempt.messages} == {
                "system",
                "user",
                "assistant",
            }
    finally:
        pettingzoo.aec_registry.pop("test/bargain-v0")


def test_without_pettingzoo_games_play_and_its_face_names_the_extra():
    code = (
        "import sys; sys.modules['pettingzoo'] = None\n"
        "import palaestra\n"
        "arena = palaestra.arena('palaestra/debate_v0', 3)\n"
        "assert len(arena.seats) == 3\n"
        "try:\n    palaestra.arena('classic/chess_v6', 2)\n"
        "except palaestra.UnknownId:\n    print('unknown')\n"
        "try:\n    import palaestra.envs.arena.pettingzoo\n"
        "except palaestra.MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "unknown"
    assert "pip install 'palaestra[games]'" in done.stdout
