"""Freed memory goes back to the operating system."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from palaestra.agents.heap import trim_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

blocks = [torch.ones(25_000) for _ in range(4000)]  # 400 MB in blocks that are too small to be mapped by themselves.
last, held = blocks[-1], resident()
del blocks
trim_heap()
print(held - resident(), float(last.sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc keeps what is freed, others need no call")
def test_memory_that_was_freed_below_a_living_tensor_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    returned, total = map(float, done.stdout.split())
    assert returned > 300e6
    assert total == 25_000
