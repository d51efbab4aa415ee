"""Environments of others in `palaestra.arena`: Gymnasium's of text, PettingZoo's of either kind, and the refusals."""

import logging
import subprocess
import sys

import game_worlds
import gymnasium
import pettingzoo
import pytest
from driven import becomes, begun, heard, seated

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


def said(arena, *turns, task=0):
    """Say these in slot 0, in an episode of its own; the last event of it."""
    arena.begin(0, Start(task, 1))
    event = arena.recv(1, 60)[0]
    for turn in turns:
        assert event.ending is None
        arena.send({0: turn})
        event = arena.recv(1, 60)[0]
    return event


def opening(arena, task=0):
    return said(arena, task=task).messages[0]["content"]


def test_the_task_decides_the_problem_and_splits_take_different_seeds():
    train, again, held_out = (palaestra.arena(ECHO, 1, split=split) for split in ("train", "train", "eval"))
    assert [opening(train, n) for n in range(5)] == [opening(again, n) for n in range(5)]
    word = gymnasium.make(ECHO, disable_env_checker=True)
    assert opening(train, 3) == word.reset(seed=6)[0]
    assert opening(held_out, 3) == word.reset(seed=7)[0]


def test_success_is_what_the_environment_says_or_where_it_does_not_a_threshold():
    knows = palaestra.arena(JUDGED, 1, split="eval")
    first = opening(knows)
    assert first.startswith("eval: Say")
    event = said(knows, first.split()[-1])
    assert (event.parts, event.reward) == ({"success": 1.0, "reward": 0.0}, 0.0)
    assert said(knows, "wrong").parts == {"success": 0.0, "reward": -1.0}
    graded = palaestra.arena("test/Graded-v0", 1)
    word = opening(graded).split()[-1]
    assert said(graded, word, "x").parts == {"success": 0.0, "reward": 1.0}
    assert said(graded, word, word).parts == {"success": 1.0, "reward": 2.0}
    assert said(palaestra.arena("test/Graded-v0", 1, success_at=1), word, "x").parts["success"] == 1.0
    assert said(palaestra.arena(ECHO, 1), "x").parts["success"] == 0.0


@pytest.mark.parametrize("total", [0.4, 37])
def test_partial_credit_is_a_success_only_where_a_threshold_says_so(total):
    options = {"rewards": (total,)}
    word = opening(palaestra.arena(ECHO, 1)).split()[-1]
    with pytest.raises(
        UsageError, match=r"test/Echo-v0 ended an episode with the reward .* give the option success_at"
    ):
        said(palaestra.arena(ECHO, 1, **options), word)
    assert said(palaestra.arena(ECHO, 1, **options), "wrong").parts == {"success": 0.0, "reward": 0.0}
    for success_at, success in ((total, 1.0), (total + 1, 0.0)):
        assert said(palaestra.arena(ECHO, 1, success_at=success_at, **options), word).parts["success"] == success


def test_a_sum_of_rewards_that_is_rounded_reaches_its_threshold():
    options = {"rewards": (0.1 + 0.7,)}
    word = opening(palaestra.arena(ECHO, 1)).split()[-1]
    assert said(palaestra.arena(ECHO, 1, success_at=0.8, **options), word).parts["success"] == 1.0
    assert said(palaestra.arena(ECHO, 1, success_at=0.8001, **options), word).parts["success"] == 0.0


def say_it(messages, rng):
    return str(messages[-1]["content"]).split()[-1]


def test_a_gymnasium_environment_of_text_is_an_arena(arena):
    opened = arena(ECHO, 4, ordered=True)
    assert isinstance(opened, Arena)
    assert (opened.slots, opened.seats, opened.ordered) == (4, (), True)
    episodes = list(play(Agent(ScriptedPolicy(say_it)), opened, [Start(n, n) for n in range(20)]))
    assert [(episode.ending, episode.reward) for episode in episodes] == [(Ending.ANSWERED, 1.0)] * 20
    first = episodes[0]
    assert first.parts == {"success": 1.0, "reward": 1.0}
    assert [message["role"] for message in first.attempt.messages] == ["user", "assistant"]
    assert first.attempt.task.id == f"train/{first.start.task}"
    assert first.attempt.answer == first.attempt.messages[-1]["content"]


def test_a_turn_outside_the_space_is_answered_and_not_passed_on():
    opened = palaestra.arena(ECHO, 1)
    assert "this turn is not legal here; write 1 to 20" in said(opened, "a" * 21).messages[0]["content"]
    event = said(opened, *["?!"] * 9)
    assert (event.ending, event.reward) == (Ending.TURN_LIMIT, 0.0)


def test_a_step_that_never_returns_is_broken_and_does_not_starve_the_others(arena):
    opened = begun(arena(ECHO, 3, timeout=50, max_workers=1))
    opened.send({0: "hang", 1: "x", 2: "y"})
    (job,) = opened._tables[0].out[0].works
    assert becomes(lambda: job.started_at is not None)
    job.started_at -= 50.0  # It has hung for so long, and a busy machine takes nothing from the others.
    ended = heard(opened, 3)
    assert [ended[slot].ending for slot in range(3)] == [Ending.BROKEN, Ending.ANSWERED, Ending.ANSWERED]
    assert ended[0].reward is None
    assert "test/Echo-v0: step gave no result in 50 s" in ended[0].fault
    game_worlds.gate.set()
    assert said(opened, "x").ending is Ending.ANSWERED


def test_a_crash_of_the_agents_making_earns_nothing_and_is_not_broken(caplog):
    opened = palaestra.arena(ECHO, 1)
    with caplog.at_level(logging.WARNING, logger="palaestra.envs"):
        event = said(opened, "crash")
    assert (event.ending, event.parts) == (Ending.TURN_LIMIT, {"success": 0.0, "reward": 0.0})
    assert "ZeroDivisionError" in caplog.text
    told = "Error: the environment failed on this turn: ZeroDivisionError: crashed by the agent"
    assert event.attempt.messages[-1]["content"] == event.messages[-1]["content"] == told
    assert event.fault == "", "an episode with a fault is left out of training"
    assert said(opened, "x").ending is Ending.ANSWERED


def test_an_environment_that_says_it_is_broken_or_does_not_reset_is_broken():
    for event, fault in (
        (said(palaestra.arena(ECHO, 1), "gone"), "the server is gone"),
        (said(palaestra.arena(ECHO, 1, slow=-1.0)), "RuntimeError: no server"),
    ):
        assert (event.ending, event.reward) == (Ending.BROKEN, None)
        assert fault in event.fault


def test_a_step_of_another_shape_is_the_authors_defect_whatever_the_agent_did():
    for turn, said_of_it in (
        ("old", r"Echo-v0\.step returned 4 values; expected observation, reward, term"),
        ("nan", "gave the reward nan"),
    ):
        with pytest.raises(EnvironmentDefect, match=said_of_it):
            said(palaestra.arena(ECHO, 1), turn)
    together = palaestra.arena(TOGETHER, 2)
    seated(together)
    together.send({0: "bare", 1: "x"})
    with pytest.raises(EnvironmentDefect, match=r"together_v0\.step returned '1\.0'; expected a dict by seat"):
        together.recv(2, 60)


def test_what_is_no_text_or_not_there_is_refused():
    pettingzoo.register("parallel", "test/mute_v0", "game_worlds:Mute")
    for env_id, options, error, told in (
        ("CartPole-v1", {}, UsageError, r"CartPole-v1 observes Box.* and acts Discrete.*expected text in both"),
        (NUMBERS, {}, UsageError, "observes Discrete"),
        ("test/mute_v0", {}, UsageError, r"test/mute_v0, one_0, observes TextSpace.* acts Discrete"),
        ("test/Ecko-v0", {}, UnknownId, "no environment is registered as 'test/Ecko-v0'"),
        (ECHO, {"colour": "red"}, UsageError, "cannot be made with"),
    ):
        with pytest.raises(error, match=told):
            palaestra.arena(env_id, 2, **options)
    for env_id, start, told in (
        (ECHO, Start(0, 0, seat="one_0"), "one seat; expected Start"),
        (COUNT, Start(0, 0), r"to be one of 'one_0', 'two_0'$"),
    ):
        with pytest.raises(UsageError, match=told):
            palaestra.arena(env_id, 2).begin(0, start)


def count_up(messages, rng):
    return str(int(messages[-1]["content"]) + 1)


def starts(arena, tasks):
    return [Start(task, 50 + task, seat=seat) for task in range(tasks) for seat in arena.seats]


def test_a_foreign_aec_game_is_played_seat_by_seat(arena):
    opened = arena(COUNT, 6, success_at=2)
    assert opened.seats == ("one_0", "two_0")
    episodes = list(play(Agent(ScriptedPolicy(count_up)), opened, starts(opened, 9)))
    found = [(episode.ending, episode.reward, episode.fault, episode.attempt.turns) for episode in episodes]
    assert found == [(Ending.TURN_LIMIT, 2.0, "", 2)] * 18


def test_partial_credit_of_a_seat_asks_for_a_threshold_too(arena):
    opened = arena(COUNT, 6)
    with pytest.raises(UsageError, match=r"count_v0 ended an episode with the reward 2 .* give the option success_at"):
        list(play(Agent(ScriptedPolicy(count_up)), opened, starts(opened, 1)))


def counting(arena, text):
    """A game of two in which the first has said this."""
    opened = arena(COUNT, 2, success_at=2)
    for slot, seat in enumerate(opened.seats):
        opened.begin(slot, Start(0, 0, seat=seat))
    (event,) = opened.recv(1, 60)
    assert event.start.seat == "one_0"
    opened.send({0: text})
    return opened


def test_a_seat_whose_play_ends_early_is_reported_with_the_rest(arena):
    opened = counting(arena, "wrong")
    while (event := opened.recv(1, 60)[0]).ending is None:
        assert event.start.seat == "two_0"
        opened.send({1: count_up(event.messages, None)})


def test_a_crash_in_a_game_is_laid_to_the_seat_that_acted(arena):
    one, two = (heard(counting(arena, "crash"), 2)[slot] for slot in (0, 1))
    assert one.ending is two.ending is Ending.TURN_LIMIT
    assert one.fault == ""
    assert "failed on the turn of one_0" in two.fault
    assert "KeyError: 'crash'" in one.attempt.messages[-1]["content"]
    assert "KeyError" not in str(two.attempt.messages)
    assert one.parts["success"] == two.parts["success"] == 0


def test_a_foreign_parallel_game_steps_when_all_have_spoken(arena):
    opened = arena(TOGETHER, 2, split="eval")
    assert [event.messages[0]["content"] for event in seated(opened, task=4)] == ["seed 9", "seed 9"]
    opened.send({0: "tree"})
    assert opened.recv(1, 0.05) == []
    opened.send({1: "tree"})
    assert len(opened.recv(2, 60)) == 2
    opened.send({0: "sea", 1: "sun"})
    assert [(event.reward, event.parts["success"]) for event in opened.recv(2, 60)] == [(1.0, 0.0)] * 2


def test_our_own_games_come_through_pettingzoos_door_with_the_same_messages(arena):
    kwargs = dict(pettingzoo.spec("aec", "palaestra/negotiation_v0").kwargs)
    pettingzoo.register("aec", "test/bargain_v0", "palaestra.envs.arena.pettingzoo:make_aec", kwargs=kwargs)
    ours, theirs = arena("palaestra/negotiation_v0", 2), arena("test/bargain_v0", 2, success_at=1)
    assert theirs.task_count == 2**30
    rule = palaestra.demonstrator("palaestra/negotiation_v0")
    for one in (ours, theirs):
        episodes = list(play(Agent(ScriptedPolicy(rule)), one, starts(one, 3)))
        assert {episode.ending for episode in episodes} == {Ending.ANSWERED}
        assert all(episode.reward == episode.parts["success"] or one is theirs for episode in episodes)
        roles = {message["role"] for episode in episodes for message in episode.attempt.messages}
        assert roles == {"system", "user", "assistant"}


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
