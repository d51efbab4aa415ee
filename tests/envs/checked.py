"""`palaestra check` of a class that a test has written."""

import gymnasium

import palaestra
from palaestra.envs.checks.check import check


def findings(cls, demonstrator=None):
    """What every check of it finds."""
    env_id = f"test/{cls.__name__}-v0"
    palaestra.register(env_id, f"{cls.__module__}:{cls.__name__}", demonstrator=demonstrator)
    try:
        return check(env_id)
    finally:
        gymnasium.registry.pop(env_id)


def failed(cls, **options):
    """What the failed ones say, by name."""
    return {finding.name: finding.message for finding in findings(cls, **options) if not finding.passed}
