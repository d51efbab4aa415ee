"""The space of texts goes where Gymnasium's own `Text` goes, and no text is changed on the way."""

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import DelayObservation, FlattenObservation, FrameStackObservation, RecordEpisodeStatistics
from gymnasium.wrappers import vector as vectors

from palaestra.envs import TextSpace

SAID = ["Où? \ud800", "", "line\nline", "x" * 5000]


class Speaker(gymnasium.Env):
    """Says one text after another."""

    observation_space = action_space = TextSpace()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return SAID[0], {}

    def step(self, action):
        self.at += 1
        return SAID[self.at], 0.0, False, False, {}


def seen(env):
    """What an environment shows, each of it in its space."""
    found = [env.reset(seed=0)[0]] + [env.step(env.action_space.sample())[0] for _ in SAID[1:]]
    assert all(one in env.observation_space for one in found)
    env.close()
    return found


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        (lambda env: DelayObservation(env, 2), ["", "", *SAID[:2]]),
        (lambda env: FrameStackObservation(env, 2), list(zip([SAID[0], *SAID], SAID, strict=False))),
        (lambda env: FrameStackObservation(env, 2, padding_type="zero"), list(zip(["", *SAID], SAID, strict=False))),
        (FlattenObservation, SAID),
        (lambda env: FlattenObservation(FrameStackObservation(env, 1)), [(text,) for text in SAID]),
        (RecordEpisodeStatistics, SAID),
    ],
    ids=["delay", "stack", "stack from nothing", "flatten", "flatten a stack", "statistics"],
)
def test_gymnasiums_wrappers_take_texts_and_leave_them_as_they_are(wrap, expected):
    assert seen(wrap(Speaker())) == expected


@pytest.mark.parametrize("mode", ["same", "different"])
@pytest.mark.parametrize("kind", ["serial", "flattened", "processes"])
def test_gymnasiums_vector_environments_take_texts_and_leave_them_as_they_are(kind, mode):
    pair = [Speaker, Speaker]
    if kind == "processes":
        env = AsyncVectorEnv(pair, shared_memory=False, observation_mode=mode)
    else:
        env = SyncVectorEnv(pair, observation_mode=mode)
    assert env.observation_space == spaces.Tuple((TextSpace(), TextSpace()))
    first, second = env.observation_space.sample()
    assert first != second, "each of them draws for itself"
    assert seen(vectors.FlattenObservation(env) if kind == "flattened" else env) == [(text, text) for text in SAID]


def test_shared_memory_is_refused_since_it_would_hand_out_other_texts():
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([Speaker, Speaker])
    assert not issubclass(TextSpace, spaces.Text)


def test_a_text_beside_other_things_is_flattened_around():
    space = spaces.Dict(text=TextSpace(), level=spaces.Discrete(3))
    flat = spaces.flatten(space, {"text": "é", "level": 2})
    assert (flat["text"], list(flat["level"])) == ("é", [0, 0, 1])
    assert flat in spaces.flatten_space(space)
    assert spaces.unflatten(space, flat) == {"text": "é", "level": 2}
    with pytest.raises(ValueError, match="cannot be flattened to a numpy array"):
        spaces.flatdim(TextSpace())
    assert TextSpace() != spaces.Text(5)
