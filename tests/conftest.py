"""What every test runs under: one thread, no network for model hubs, no deadline that a busy machine would miss.

It seeds nothing: a test that needs numbers makes its own generator.
"""

import os

# Before anything imports torch or numpy, which read it once. Threads would fight over two cores and blur timings.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import hypothesis
import pytest

hypothesis.settings.register_profile("palaestra", deadline=None)
hypothesis.settings.load_profile("palaestra")

WHOLE_MACHINE = {"test_hostile.py", "test_remote_command.py", "test_sandbox_killing.py"}
"""Proofs that look at everything this machine runs; they would see each other's processes."""


@pytest.hookimpl(tryfirst=True)  # The one that deals out reads the marks in the same hook.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """How `make prove` deals the proofs out: a file stays together for its fixtures, and so do the ones above."""
    for item in items:
        if item.get_closest_marker("prove"):
            name = item.path.name
            item.add_marker(pytest.mark.xdist_group("the whole machine" if name in WHOLE_MACHINE else name))
