"""WebNav and WebShop look alike in both browsers: a script plays both, and reads the same replies to the letter."""

import numpy as np
import pytest

import palaestra
from palaestra.envs import TextEnv
from palaestra.envs.suite.web_nav import WebNav
from palaestra.envs.suite.web_shop import WebShop

pytestmark = pytest.mark.chromium


def played(author, env_id):
    """All messages and the parts of one episode of the demonstrator."""
    env, rule, rng = TextEnv(author), palaestra.demonstrator(env_id), np.random.default_rng(0)
    env.reset(seed=0, options={"task": 0})
    while True:
        *_, terminated, truncated, info = env.step(rule(env.attempt.messages, rng))
        if terminated or truncated:
            return env.attempt.messages, dict(info["parts"])


@pytest.mark.parametrize(("make", "env_id"), [
    (lambda browser: WebNav(depth=4, sources=2, browser=browser), "palaestra/WebNav-v0"),
    (lambda browser: WebShop(browser=browser), "palaestra/WebShop-v0"),
], ids=["nav", "shop"])  # fmt: skip
def test_a_script_reads_the_same_in_both_browsers_and_wins(make, env_id):
    text, chromium = (played(make(browser), env_id) for browser in ("text", "chromium"))
    assert text[1]["success"] == 1.0
    assert chromium == text
