"""The tests with DeepSpeed. `make test-deepspeed` makes an environment that has it; elsewhere they are skipped."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "agents"), str(TESTS / "trainers"), str(Path(__file__).parent)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/deepspeed" in str(item.path):
            item.add_marker(pytest.mark.deepspeed)
            if find_spec("deepspeed") is None:
                item.add_marker(pytest.mark.skip("`make test-deepspeed` makes an environment with it and runs this"))
