"""Where a toolkit's programs run: what cannot heal is raised, what may heal is BROKEN, limits come with the place."""

import asyncio

import pytest
from desks import Desk

import palaestra
from palaestra import Broken, SandboxUnavailable, ToolError, UsageError
from palaestra.envs import Task, TextEnv, ToolVectorEnv
from palaestra.envs.sandboxes import Limits, Result
from palaestra.envs.tools.python import CodeInterpreter, Python


class Walled(Python):
    require = ("landlock",)


def started(kit, place):
    made = kit(place)
    made.start(Task(prompt="?", answer="!"), None)
    return made


PERMANENT = [
    ({"backend": "local", "foo": 1}, Python, UsageError, "no option 'foo'"),
    ({"backend": "fusion"}, Python, UsageError, "needs 'url'"),
    (
        {"backend": "local", "limits": {"secnds": 1}},
        Python,
        UsageError,
        "limits has no 'secnds'; did you mean 'seconds'",
    ),
    ({"backend": "fake", "require": ["landlock"]}, Python, SandboxUnavailable, "landlock"),
    ({"backend": "fake", "require": "files"}, Python, UsageError, "in a tuple"),
    ("fake", Walled, SandboxUnavailable, "not enforced here: landlock"),
]


def test_an_unknown_backend_is_refused_at_once():
    for where in ("dokcer", {"url": "x"}, {"backend": ["local"]}, 3):
        with pytest.raises(UsageError, match="local"):
            Desk(sandbox=where)


@pytest.mark.parametrize(("place", "kit", "error", "said"), PERMANENT)
def test_a_place_that_no_episode_could_have_is_raised_and_not_played(fake, place, kit, error, said):
    with pytest.raises(error, match=said):
        TextEnv(Desk(kit, sandbox=place)).reset(seed=0)
    vector = ToolVectorEnv(Desk(kit, sandbox=place), 3)
    try:
        with pytest.raises(error, match=said):  # As it begins, where that only computes, or as it is waited for.
            vector.reset(seed=0)
    finally:
        vector.close()


def test_a_library_that_is_missing_is_raised_too(fake, monkeypatch):
    def missing(*arguments, **options):
        raise palaestra.MissingExtra("docker", "docker", "the docker sandbox")

    monkeypatch.setattr(fake.FakeSandbox, "__init__", missing)
    with pytest.raises(palaestra.MissingExtra, match="pip install"):
        TextEnv(Desk()).reset(seed=0)


@pytest.mark.parametrize(
    "fault", [Broken("the supervisor was not ready"), ConnectionError("gone"), OSError(24, "full")]
)
def test_trouble_that_may_pass_breaks_the_episode_and_the_next_one_is_played(fake, monkeypatch, fault):
    def fail(sandbox, **options):
        raise fault

    env = TextEnv(Desk())
    with monkeypatch.context() as patch:
        patch.setattr(fake.FakeSandbox, "__init__", fail)
        with pytest.raises(Broken, match="a toolkit did not start"):
            env.reset(seed=0)
    env.reset(seed=0)
    assert env.step("yes")[1] == 1.0


def test_limits_of_a_place_stand_in_place_of_the_toolkits(fake):
    class Narrow(Python):
        limits = Limits(seconds=2.0, memory_bytes=2**28)

    kit = started(Narrow, {"backend": "fake", "limits": {"seconds": 500.0}})
    assert kit.limits == Limits(seconds=500.0, memory_bytes=2**28)
    assert fake.opened[-1]["limits"] == kit.limits
    assert asyncio.run(kit.python("6 * 7")) == "42"
    assert (fake.sessions[-1].limits, fake.asked[-1][1]) == (kit.limits, 500.0)
    fake.script.append(Result(exit_code=None, signal=9, timed_out=True, limit_hit="seconds"))
    with pytest.raises(ToolError, match="timed out after 500 s"):
        asyncio.run(kit.python("1"))
    assert kit.tools["python"].timeout > 530 > Narrow.tools["python"].timeout > 30
    env = TextEnv(Desk(sandbox={"backend": "fake", "limits": {"seconds": 500.0}}))
    env.reset(seed=0)
    assert env.machine.act(None, env.call("python", code="1")).works[0].conditions.seconds > 530, "in an episode too"
    env.close()
    assert all(tool.timeout > CodeInterpreter.limits.seconds + 30 for tool in CodeInterpreter.tools.values())
    whole = Limits(seconds=1.0)
    assert started(CodeInterpreter, {"backend": "fake", "limits": whole}).limits == whole
    assert started(Narrow, "fake").limits == Narrow.limits
