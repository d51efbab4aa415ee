"""Gymnasium's own vector wrappers and modes: they work, or they refuse loudly; no text is ever changed on the way."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import vector as wrappers

import palaestra

ENV_ID = "palaestra/Calculator-v0"


def played(envs, slots=3, turns=4, as_infos=False):
    """Every slot plays by rule until all have ended: what it was told, and its return."""
    play = palaestra.demonstrator(ENV_ID)
    rng = np.random.default_rng(0)
    _, infos = envs.reset(seed=3)
    prompts = [info["messages"] for info in infos] if as_infos else infos["messages"]
    said = [list(messages) for messages in prompts]
    heard = [[] for _ in range(slots)]
    running = np.ones(slots, bool)
    returns = np.zeros(slots)
    for _ in range(turns):
        actions = [play(said[slot], rng) if running[slot] else None for slot in range(slots)]
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        returns += rewards
        for slot in np.flatnonzero(running):
            heard[slot].append(observations[slot])
            new = infos[slot]["messages"] if as_infos else infos["messages"][slot]
            said[slot] += [{"role": "assistant", "content": actions[slot]}, *new]
        running &= ~(terminated | truncated)
        if not running.any():
            break
    assert not running.any()
    envs.close()
    return heard, returns, infos


@pytest.fixture(scope="module")
def plain():
    return played(gymnasium.make_vec(ENV_ID, num_envs=3))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda envs: wrappers.RecordEpisodeStatistics(wrappers.ClipReward(envs, 0.0, 1.0)),
        lambda envs: wrappers.TransformAction(envs, lambda actions: tuple(actions)),
        lambda envs: wrappers.TransformObservation(envs, lambda texts: tuple(texts), envs.observation_space),
    ],
)
def test_wrappers_change_no_text_and_no_return(plain, wrap):
    heard, returns, infos = played(wrap(gymnasium.make_vec(ENV_ID, num_envs=3)))
    assert heard == plain[0]
    assert returns.tolist() == plain[1].tolist() == [1.0] * 3
    if "episode" in infos:
        assert infos["episode"]["r"].tolist() == [1.0] * 3
        assert (infos["episode"]["l"] > 0).all()


def test_infos_as_lists_hold_the_messages_of_their_slot(plain):
    heard, returns, infos = played(wrappers.DictInfoToList(gymnasium.make_vec(ENV_ID, num_envs=3)), as_infos=True)
    assert (heard, returns.tolist()) == (plain[0], [1.0] * 3)
    assert [info["attempt"].answer for info in infos] == [info["attempt"].task.answer for info in infos]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_serial_and_the_process_mode_tell_the_same_texts(plain, mode):
    options = {"autoreset_mode": "Disabled", **({"shared_memory": False} if mode == "async" else {})}
    envs = gymnasium.make_vec(ENV_ID, num_envs=3, vectorization_mode=mode, vector_kwargs=options)
    assert played(envs)[:1] == plain[:1]
