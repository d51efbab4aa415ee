"""PettingZoo's faces of a game: branched with it, and strict about what nobody would read."""

import pickle

import game_worlds
import numpy as np
import pettingzoo
import pytest
from driven import refused

from palaestra.envs import Game, Task
from palaestra.envs.arena.pettingzoo import AECGame, ParallelGame
from palaestra.errors import UsageError
from palaestra.formats import ParsedCall, hermes

DEBATE = "palaestra/debate_v0"


class Bells(Game):
    """Both are asked at once, then one alone, who may ring; whoever hears the game's noise says nothing of it."""

    seats = ("a_0", "b_0")
    seat_tools = {"a_0": ("ring",)}  # noqa: RUF012

    def task(self, rng):
        return Task(f"Bell {rng.integers(10_000)}.", "x")

    @game_worlds.tool
    def ring(self) -> str:
        self.rung += 1
        return f"rung {self.rung}"

    def rounds(self, task, rng):
        self.rung = 0
        yield dict.fromkeys(self.seats, f"{task.prompt} {rng.integers(10**9)}")
        yield {"a_0": f"Alone {rng.integers(10**9)}"}
        return dict.fromkeys(self.seats, min(1.0, self.rung / 4))


RING = hermes.render([ParsedCall("ring", {})])
FACES = pytest.mark.parametrize("face", [AECGame, ParallelGame])


def shown(env):
    """All that an AEC face lets anybody see."""
    seats = env.possible_agents
    told = {seat: (env.observe(seat), env.infos[seat]["asked"], env.infos[seat]["messages"]) for seat in seats}
    return env.agent_selection, told, env.agents, env.rewards, env.terminations, env.truncations


def end(env, *turns):
    """Say these in AEC, whoever is asked; then what could be seen on the way."""
    seen = [shown(env)]
    for text in turns:
        env.step(text)
        seen.append(shown(env))
    return seen


PLAN = (RING, "so", "well", RING, "on")


@pytest.mark.parametrize("turns", range(len(PLAN)))
def test_an_aec_face_stands_after_a_restore_where_the_snapshot_was_taken(turns):
    env = AECGame(Bells())
    env.reset(seed=3)
    end(env, *PLAN[:turns])
    here = env.snapshot()
    first = end(env, *PLAN[turns:])
    assert env.rewards == {"a_0": 0.5, "b_0": 0.5}
    other = AECGame(Bells())
    for one in (env, other):
        one.restore(here)
        assert end(one, *PLAN[turns:]) == first


def test_a_parallel_face_stands_after_a_restore_where_the_snapshot_was_taken():
    env = ParallelGame(Bells())
    first, infos = env.reset(seed=3)
    opening = env.snapshot()
    second = env.step({"a_0": RING, "b_0": "so"})
    middle = env.snapshot()
    third = env.step({"a_0": "on"})
    ended = env.step({"a_0": "on"})
    assert env.agents == []
    assert env.restore(opening) == (first, infos)
    assert env.step({"a_0": RING, "b_0": "so"}) == second
    texts, infos = env.restore(middle)
    assert (texts, infos) == (second[0], second[4])
    assert env.step({"a_0": "on"}) == third
    assert env.step({"a_0": "on"})[:4] == ended[:4]


@FACES
def test_branches_of_a_face_differ_in_their_noise_only(face):
    env = face(Bells())
    env.reset(seed=3)

    def heard(one):
        if face is AECGame:
            one.step("so")
            one.step("so")
        else:
            one.step(dict.fromkeys(one.possible_agents, "so"))
        return [message["content"] for message in one.machine.state.seats["a_0"].messages]

    children, again, twins = env.fork(3), env.fork(3), env.fork(2, own_noise=False)
    assert {type(child) for child in children} == {face}
    ends = [heard(child) for child in children]
    assert len({told[-1] for told in ends}) == 3
    assert len({told[0] for told in ends}) == 1
    assert [heard(child) for child in again] == ends
    assert heard(twins[0]) == heard(twins[1]) == heard(env)
    for one in (*children, *again, *twins, env):
        one.reset()
    drawn = [one.machine.state.problem.prompt for one in (*children, *again, *twins, env)]
    assert len(set(drawn[:3])) == 3, "what a branch plays next is its own"
    assert drawn[:3] == drawn[3:6]
    assert drawn[6] == drawn[7] == drawn[8]


@FACES
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_face_pickles_in_the_middle_of_a_game_and_after_it(face, turns):
    def take(env, count):
        """Say what the plan has next, as long as the game goes on; then all that could be seen."""
        if face is AECGame:
            return end(env, *[text for text in PLAN[:count] if env.agents])
        return [env.step({"a_0": RING, "b_0": "so"}) for _ in range(min(count, 4)) if env.agents]

    env = face(Bells(), "ansi")
    env.reset(seed=3)
    take(env, turns)
    twin = pickle.loads(pickle.dumps(env))
    if turns < 4:
        assert twin.render() == env.render()
        assert take(twin, 2) == take(env, 2)
    twin.reset(), env.reset()
    assert twin.render() == env.render()
    assert take(twin, 3) == take(env, 3)


@FACES
def test_options_that_nobody_reads_are_refused(face):
    env = face(Bells())
    for options, said in (
        ({"foo": 1}, "options has no 'foo'; expected 'task'"),
        ({"tasks": 1, "options": 1}, "options has no 'tasks'; is 'task' meant"),
        *(({"task": loose}, r"options\['task'\] is .*; expected a whole number") for loose in (1.9, "3", True)),
    ):
        with pytest.raises(UsageError, match=said):
            env.reset(options=options)
    for task in (5, np.int64(6)):
        env.reset(options={"task": task})
        assert env.machine.state.problem.id == f"train/{task}"


@pytest.mark.parametrize("kind", ["aec", "parallel"])
def test_a_face_without_a_game_says_that_none_is_played(kind):
    env = pettingzoo.make(kind, DEBATE)
    action = "so" if kind == "aec" else dict.fromkeys(env.possible_agents, "so")
    refused(r"step: no game is played.*call reset first", env.step, action)
    refused(r"no episode of .* runs", env.snapshot)
    if kind == "aec":
        refused("call reset first", env.observe, "judge_0")
        refused("no game is played; call reset first", lambda: env.agent_selection, error=AttributeError)
        refused("has no attribute 'agent_selector'", lambda: env.agent_selector, error=AttributeError)
        assert not hasattr(env, "agent_selection")
    env.reset(seed=0)
    while env.agents:
        over = kind == "aec" and any(env.terminations.values())
        env.step(None if over else action)
    refused("step: no game is played, or it has ended", env.step, action)


def test_an_action_of_a_seat_that_does_not_exist_is_refused():
    env = pettingzoo.make("parallel", DEBATE)
    env.reset(seed=0)
    asked = dict.fromkeys(env.agents, "so")
    refused(r"no seat .nobody.; the seats are debater_0, debater_1, judge_0", env.step, asked | {"nobody": "y"})
    for ask in (env.action_space, env.observation_space, pettingzoo.make("aec", DEBATE).observe):
        refused("there is no seat 'nobody'", ask, "nobody")
    refused("step: debater_0, debater_1 were asked and have no action", env.step, {})
    env.step(asked)
