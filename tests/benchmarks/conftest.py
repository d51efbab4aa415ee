"""What the tests of benchmarks share: a script by its file, as a mapping of what it defines."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("agents", "trainers")]


@pytest.fixture
def load(monkeypatch):
    """Scripts find `peers` as they do from the command line."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: runpy.run_path(str(BENCHMARKS / name), run_name="benchmark")


@pytest.fixture
def script(load, request):
    """The benchmark that a test module is about."""
    return load(request.module.SCRIPT)


@pytest.fixture
def change(script, monkeypatch):
    """Replaces what the script's functions read."""
    return lambda name, value: monkeypatch.setitem(script["main"].__globals__, name, value)
