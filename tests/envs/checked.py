"""`palaestra check` of a class that a test has written."""

import gymnasium

import palaestra
from palaestra.envs.checks.check import CHECKS
from palaestra.envs.checks.findings import measure


def findings(cls, demonstrator=None, checks=CHECKS):
    """What every check of it finds."""
    env_id = f"test/{cls.__name__}-v0"
    palaestra.register(env_id, f"{cls.__module__}:{cls.__name__}", demonstrator=demonstrator)
    try:
        return measure(checks, env_id)
    finally:
        gymnasium.registry.pop(env_id)


def failed(cls, **options):
    """What the failed ones say, by name."""
    return {finding.name: finding.message for finding in findings(cls, **options) if not finding.passed}


def failed_of(cls, *names):
    """The same of these checks alone."""
    return failed(cls, checks={name: CHECKS[name] for name in names})
