"""`palaestra check` of a class that tests can import, and what it says."""

import sys

import pytest

import palaestra
from palaestra.envs.checks import at_once, cheats, trials
from palaestra.envs.checks.check import CHECKS, OF_GAMES, OF_ONE_SEAT
from palaestra.envs.checks.findings import measure

RECORDED = "rewards see the attempt alone"


def findings(cls, *names, demonstrator=(), slow=False):
    """What these checks find, or all of them but the one that starts a process."""
    module = sys.modules[cls.__module__]
    script = next((f"{cls.__module__}:{name}" for name, one in vars(module).items() if one is demonstrator), None)
    register = palaestra.register_game if cls.seats else palaestra.register
    env_id = f"test/{cls.__name__}-v0"
    register(env_id, f"{cls.__module__}:{cls.__name__}", demonstrator=script)
    with pytest.MonkeyPatch.context() as patch:  # As many episodes on a busy machine as on any other.
        patch.setattr(trials, "CHEAT_SECONDS", 60.0)
        patch.setattr(cheats, "SAMPLE_SECONDS", 60.0)
        left_out = OF_ONE_SEAT if cls.seats else OF_GAMES
        every = {name: one for name, one in CHECKS.items() if one not in left_out and name != RECORDED}
        subject = trials.Subject(env_id)
        subject.slow = slow
        return measure({name: CHECKS[name] for name in names} or every, subject)


def failed(cls, *names, **options):
    """What the failed ones say, by name."""
    return {found.name: found.message for found in findings(cls, *names, **options) if not found.passed}


def success(env_id, rule, episodes=24, **options):
    """The share of episodes that a rule wins."""
    subject = trials.Subject(env_id, options)
    (ends,) = (list(at_once.demonstrated(subject, chair, rule, episodes)) for chair in subject.chairs())
    return sum(end.parts["success"] for end in ends) / len(ends)
