"""What every test runs under: one thread, no network for model hubs, no deadline that a busy machine would miss.

It seeds nothing: a test that needs numbers makes its own generator. Properties are tried on the same examples in every
run, or a rare one would fail somebody else's change; `pytest --hypothesis-profile=default` looks for new ones.
"""

import gc
import os
import signal

# Before anything imports torch or numpy, which read it once. Threads would fight over two cores and blur timings.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.pop("COLUMNS", None)  # workers of pytest-xdist have it, and what we print would be broken at it

import hypothesis
import pytest

# Whoever starts the tests by nohup or in the background has them ignore these, and so would what they test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_PATIENT = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("palaestra", deadline=None, derandomize=True, suppress_health_check=_PATIENT)
hypothesis.settings.load_profile("palaestra")


def pytest_collection_finish():
    """Exclude torch and all test modules from garbage collection, which would visit them for a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What hostile worlds wrote into the log must be text that can go from one of the two processes to the other."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture
def two_hop():
    """Sixteen slots of TwoHop's training split."""
    import palaestra

    arena = palaestra.arena("palaestra/TwoHop-v0", 16)
    yield arena
    arena.close()
