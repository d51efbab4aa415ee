"""An episode of a demonstrator, turn by turn."""

import numpy as np


def play(env, rule, seed=0, task=None):
    """Play an episode; the info of its last step."""
    rng = np.random.default_rng(seed)
    messages = list(env.reset(seed=seed, options=None if task is None else {"task": task})[1]["messages"])
    while True:
        action = rule(messages, rng)
        *_, terminated, truncated, info = env.step(action)
        messages += [{"role": "assistant", "content": action}, *info["messages"]]
        if terminated or truncated:
            return info
