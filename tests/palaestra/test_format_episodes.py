"""Call formats inside an episode: an environment names one, its tools get typed values, its agent gets told."""

import pytest

from palaestra import ConfigError, formats
from palaestra.envs import Task, TextEnv, ToolEnv, tool


class Shelf(ToolEnv):
    """Takes code, and counts."""

    def task(self, rng):
        return Task(prompt=str(rng.integers(10**9)), answer="42")

    @tool
    def python(self, code: str) -> str:
        "Says the code."
        return f"{code!r}"

    @tool
    def add(self, numbers: list[int], times: int = 1) -> str:
        "Adds."
        return str(sum(numbers) * times)

    def reward(self, attempt):
        return float(attempt.answer == "42")


SHELVES = {
    name: type(f"Shelf_{name}", (Shelf,), {"format": name, "__doc__": Shelf.__doc__}) for name in formats.FORMATS
}


def told(env, text):
    observation, *_ = env.step(text)
    return observation


@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_calls_run_with_typed_values_and_faults_are_told_in_the_same_dialect(name):
    env = TextEnv(SHELVES[name]())
    env.reset(seed=1)
    code = "x = 1\nprint(x)"
    whole = env.call("python", code=code)
    assert repr(code) in told(env, whole)
    cut = told(env, whole[: len(whole) * 6 // 10])
    assert "malformed call" in cut
    assert formats.get("hermes" if name == "auto" else name).EXAMPLE in cut
    if name != "fence":  # It holds code alone.
        assert "12" in told(env, env.call("add", numbers=[1, 2, 3], times=2))
    if name not in ("fence", "tags"):  # A tag that no tool has is just text.
        reply = told(env, env.call("pythn", code="1"))
        assert "no tool is named 'pythn'" in reply
        assert "python, add" in reply
        assert "numbers" in told(env, env.call("add", times=2))
    _, reward, terminated, *_ = env.step("<think>so</think>42")
    assert (terminated, reward) == (True, 1.0)


def test_an_environment_with_an_unknown_format_is_refused_when_it_is_written():
    with pytest.raises(ConfigError, match="did you mean 'harmony'"):
        type("Odd", (Shelf,), {"format": "harmoni"})
