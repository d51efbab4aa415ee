"""Only what a tool declared transient is tried again, within its deadline; then the episode is BROKEN."""

from types import SimpleNamespace

import pytest
import workshop

from palaestra.envs import TextEnv
from palaestra.envs.running import work
from palaestra.episode import Status


@pytest.fixture
def env():
    made = TextEnv(workshop.Flaky())
    workshop.reset()
    made.reset(seed=0)
    return made


def outcome(env, name, /, **arguments):
    *_, info = env.step(env.call(name, **arguments))
    (call,) = env.attempt.calls
    return call.status, call.text, workshop.fails, info["ending"]


@pytest.mark.parametrize("name", ["fetch", "fetch_async"])
def test_a_transient_failure_is_tried_again_and_one_that_outlives_its_tries_is_broken(env, name):
    assert outcome(env, name, times=2) == (Status.OK, "got", 3, "")
    env.reset(seed=0)
    workshop.reset()
    status, text, tries, ending = outcome(env, name, times=3)
    assert (status, tries, ending) == (Status.BROKEN, 3, "broken")
    assert "ConnectionResetError: gone (declared transient, and still so after 3 tries)" in text


def test_a_refusal_is_never_tried_again_and_infrastructure_that_stays_gone_is_broken(env):
    assert outcome(env, "refuse") == (Status.TOOL_ERROR, "Error: no", 1, "")
    env.reset(seed=0)
    workshop.reset()
    status, _, tries, ending = outcome(env, "unplugged")
    assert (status, tries, ending) == (Status.BROKEN, 2, "broken")


def test_tries_end_within_the_deadline(env, monkeypatch):
    spread = iter((0.1, 0.1, 1000.0))  # The last pause would pass it by far, and the others together are no second.
    monkeypatch.setattr(work, "_spread", SimpleNamespace(uniform=lambda *_: next(spread)))
    status, _, tries, ending = outcome(env, "never")
    assert (status, tries, ending) == (Status.BROKEN, 3, "broken")
