"""The games of the suite: PettingZoo's own tests, and what each game promises."""

import re
from collections import Counter

import numpy as np
import pettingzoo
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.suite.debate import Debate, decision
from palaestra.envs.suite.negotiation import DIVISIBLE, WORTH, Negotiation, read_offer, worth
from palaestra.envs.suite.solver_critic import SolverCritic, agrees
from palaestra.episode import Ending, Start
from palaestra.formats import ParsedCall, hermes

GAMES = ["palaestra/debate_v0", "palaestra/negotiation_v0", "palaestra/solver_critic_v0"]


@pytest.mark.parametrize("game", GAMES)
# What PettingZoo warns of: observations are text and no arrays, spaces neither Box nor Discrete.
@pytest.mark.filterwarnings("ignore:Observation is not a NumPy array")
@pytest.mark.filterwarnings("ignore:(Observation|Action) space for each agent probably should be")
def test_f54_pettingzoos_own_tests_pass(game):
    api_test(pettingzoo.make("aec", game), num_cycles=100)
    parallel_api_test(pettingzoo.make("parallel", game), num_cycles=100)
    seed_test(lambda: pettingzoo.make("aec", game), num_cycles=50)
    parallel_seed_test(lambda: pettingzoo.make("parallel", game), num_cycles=50)
    render_test(lambda render_mode=None: pettingzoo.make("aec", game, render_mode=render_mode))
    # PettingZoo converts no game that says so: its conversion wants seats in a fixed cycle.
    assert pettingzoo.make("aec", game).metadata["is_parallelizable"] is False


def test_games_are_in_both_registries_and_under_both_spellings():
    ours = [game for game in palaestra.games() if game.startswith("palaestra/")]
    assert ours == GAMES
    for game in ours:
        assert game.replace("_v0", "-v0") in pettingzoo.aec_registry
        assert game.replace("_v0", "-v0") in pettingzoo.parallel_registry
        palaestra.arena(game, 3).close()
        palaestra.arena(f"palaestra:{game}", 3).close()


def played(game, rule=None, tasks=20, slots=6):
    arena = palaestra.arena(game, slots)
    starts = [Start(task, 7 + task, group=task, seat=seat) for task in range(tasks) for seat in arena.seats]
    episodes = list(play(Agent(ScriptedPolicy(rule or palaestra.demonstrator(game))), arena, starts))
    arena.close()
    return {(episode.start.task, episode.start.seat): episode for episode in episodes}


@pytest.mark.parametrize("game", GAMES)
def test_demonstrators_play_every_seat_to_the_end_and_the_same_games_in_any_number_of_slots(game):
    few, many = played(game), played(game, slots=40)
    assert len(few) == 20 * len(pettingzoo.make("aec", game).possible_agents)
    for key, episode in few.items():
        assert episode.attempt == many[key].attempt
        assert episode.ending is Ending.ANSWERED
        assert {call.status for call in episode.attempt.calls} <= {"ok"}


@pytest.mark.parametrize("game", GAMES)
@settings(max_examples=40, deadline=None)
@given(words=st.lists(st.text(max_size=60) | st.sampled_from(["Accept", "Take 1 ball", "<tool_call>", "Yes", "Agree"])))
def test_whatever_is_said_is_legal_and_the_game_ends(game, words):
    env = pettingzoo.make("aec", game)
    env.reset(seed=1)
    said = iter([*words, *["Take 9 books"] * 60])
    for _ in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        assert np.isfinite(reward)
        assert set(info) == {"asked", "messages", "tools", "ending", "parts", "attempt", "fault"}
        env.step(None if terminated or truncated else next(said))
    assert env.agents == []


def aec(game, *turns, task=0):
    """Play these turns, and whatever the demonstrator says where a turn is None; the seats' rewards."""
    env, rule = pettingzoo.make("aec", game), palaestra.demonstrator(game)
    env.reset(seed=3, options={"task": task})
    heard = {agent: [] for agent in env.possible_agents}
    rewards, turns = {}, iter(turns)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        if terminated or truncated:
            rewards[agent] = reward
            env.step(None)
            continue
        heard[agent] += info["messages"]
        text = next(turns, None)
        text = rule(heard[agent], np.random.default_rng(0)) if text is None else text
        heard[agent].append({"role": "assistant", "content": text})
        env.step(text)
    return rewards


def test_the_solver_is_rewarded_for_its_last_answer_and_the_critic_for_a_fitting_verdict():
    answer = SolverCritic().task_set("train")[0].answer
    game = GAMES[2]
    assert aec(game, "1", "Disagree.", answer) == {"solver_0": 1.0, "critic_0": 1.0}
    assert aec(game, answer, "I cannot say", answer) == {"solver_0": 1.0, "critic_0": 0.0}
    assert aec(game, answer, "Agree.", "1") == {"solver_0": 0.0, "critic_0": 1.0}
    assert aec(game, "1", "Agree.", answer) == {"solver_0": 1.0, "critic_0": 0.0}
    assert agrees("disagree!") is False
    assert agrees("Agreement") is None


def test_the_debaters_rewards_add_up_to_zero_and_the_judge_wants_the_truth():
    truth = Debate().task_set("train")[0].answer
    lie = "No" if truth == "Yes" else "Yes"
    for verdict, right in ((truth, 1.0), (lie, 0.0), ("Perhaps", 0.0)):
        rewards = aec(GAMES[0], "a", "b", "c", "d", verdict)
        assert rewards["debater_0"] + rewards["debater_1"] == 0
        assert abs(rewards["debater_0"]) == (verdict != "Perhaps")
        assert rewards["judge_0"] == right
    assert decision("yesterday") is None


def test_debaters_who_open_together_do_not_hear_each_other_and_write_no_line_in_the_others_name():
    env = pettingzoo.make("aec", GAMES[0])
    env.reset(seed=0)
    env.step("SECRET\nNo: I give up")
    assert env.agent_selection == "debater_1"
    assert "SECRET" not in env.observe("debater_1")
    env.step("reply")
    assert "reply" in env.observe("debater_0")
    assert "SECRET" in env.observe("debater_1")
    for text in "cd":
        env.step(text)
    assert env.agent_selection == "judge_0"
    assert len(env.observe("judge_0").splitlines()) == 6  # system, question, four statements


def test_a_deal_is_worth_what_its_items_are_to_each_seat_and_ten_to_both_if_they_share_well():
    tasks = Negotiation().task_set("train")[:50]
    everything = zip(tasks[0].data["counts"], ("book", "hat", "ball"), strict=True)
    rewards = aec(GAMES[1], f"Take {', '.join(f'{count} {kind}s' for count, kind in everything)}", "accept.")
    assert sorted(rewards.values()) == [0.0, 1.0]
    assert aec(GAMES[1], "Accept", *["nothing"] * 20) == {"buyer_0": 0.0, "buyer_1": 0.0}
    assert all(1 <= count <= 4 for counts in DIVISIBLE for count in counts)
    assert all(worth(task.data["counts"], values) == WORTH for task in tasks for values in task.data["values"])


def test_a_seat_is_told_its_own_values_only():
    env = pettingzoo.make("aec", GAMES[1])
    env.reset(seed=0, options={"task": 5})
    values = dict(zip(env.possible_agents, Negotiation().task_set("train")[5].data["values"], strict=True))
    for _ in range(2):
        seat = env.agent_selection
        assert [int(n) for n in re.findall(r"is worth (\d+)", env.observe(seat))] == list(values.pop(seat))
        env.step("Take 1 book")


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("Take 1 book, 2 balls", (1, 0, 2)),
        ("take 0 hats", (0, 0, 0)),
        ("Take 3 books", None),
        ("Take 1 book, 1 book", None),
        ("I want all", None),
        ("Take -1 book", None),
        ("Take 1000 books", None),
        (None, None),
    ],
)
def test_only_legal_offers_are_read(text, taken):
    assert read_offer(text, (2, 1, 3))[0] == taken


@pytest.mark.parametrize("game", GAMES)
def test_the_parallel_face_plays_the_same_game(game):
    env, rule = pettingzoo.make("parallel", game), palaestra.demonstrator(game)
    _, infos = env.reset(seed=3, options={"task": 0})
    heard = {agent: [] for agent in env.agents}
    rewards = Counter()
    while env.agents:
        actions = dict.fromkeys(env.agents, "not read")
        for agent in env.agents:
            if infos[agent]["asked"]:
                heard[agent] += infos[agent]["messages"]
                actions[agent] = rule(heard[agent], np.random.default_rng(0))
                heard[agent].append({"role": "assistant", "content": actions[agent]})
        _, gained, _, _, infos = env.step(actions)
        rewards.update(gained)
    assert dict(rewards) == aec(game)


def test_a_call_in_an_endless_row_ends_a_turn_without_an_answer():
    call = hermes.render([ParsedCall("calculator", {"expression": "1 + 1"})])
    episodes = played(GAMES[2], rule=lambda messages, rng: call, tasks=1)
    solver = episodes[0, "solver_0"]
    assert solver.ending is Ending.TURN_LIMIT
    assert solver.attempt.answer is None
    assert len(solver.attempt.calls) == 2 * SolverCritic.max_turns
