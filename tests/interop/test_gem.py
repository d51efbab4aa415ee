"""GEM's vector environment plays environments of palaestra; BROKEN, for which it has no place, is an exception."""

import lookup_world
import pytest

from palaestra import formats
from palaestra.errors import Broken


def solved(text):
    answer, arguments = lookup_world.turn([text])
    return answer if arguments is None else f'<tool_call>{{"name": "look_up", "arguments": {arguments}}}</tool_call>'


def test_an_environment_is_registered_and_played_in_its_vector_environment():
    import gem

    from palaestra.interop.gem_env import register

    register("palaestra/Calculator-v0", split="eval")
    vector = gem.make_vec(["palaestra/Calculator-v0"] * 4, seed=3)
    observations, _ = vector.reset(seed=[1, 2, 3, 4])
    assert len(set(observations)) == 4
    questions = [observation.partition("What is ")[2].rstrip("?\n") for observation in observations]
    call = formats.get("hermes").render
    calls = [call([formats.ParsedCall("calculator", {"expression": question})]) for question in questions]
    _, rewards, terminated, *_ = vector.step(calls)
    assert not any(terminated)
    _, rewards, terminated, *_ = vector.step([str(eval(question)) for question in questions])
    assert list(rewards) == [1.0] * 4
    assert all(terminated)


def test_a_broken_episode_raises_and_a_copy_goes_on_as_the_original():
    from palaestra.interop.gem_env import GemEnv

    env = GemEnv(lookup_world.ENV_ID)
    seeds = {lookup_world.is_gone(lookup_world.number_of(env.reset(seed=seed)[0])): seed for seed in range(40)}
    text, _ = env.reset(seed=seeds[True])
    with pytest.raises(Broken, match="the server is gone"):
        env.step(solved(text))
    text, _ = env.reset(seed=seeds[False])
    copy = env.spawn(same_state=True)
    assert env.step(solved(text))[0] == copy.step(solved(text))[0]
