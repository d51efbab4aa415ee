"""The proofs share `families` with the tests of the agents and `pages` with those of the house; worlds that only a
proof needs stand beside this file.
"""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "house"), str(Path(__file__).parent)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What hostile worlds wrote into the log must be text that can go from one of the two processes to the other."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
