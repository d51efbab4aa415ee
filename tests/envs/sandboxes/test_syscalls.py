"""System calls of the runner that must not fail for what passes in a moment."""

import ctypes
import errno

import pytest

from palaestra.envs.sandboxes.runner import syscalls


def test_a_fork_beside_processes_that_are_not_buried_yet_is_tried_again(monkeypatch):
    answers = iter([-1, -1, 4711])

    def crowded():
        pid = next(answers)
        ctypes.set_errno(errno.EAGAIN)
        return pid

    monkeypatch.setattr(syscalls, "_FORK", crowded)
    assert syscalls.fork() == 4711
    monkeypatch.setattr(syscalls, "_FORK", lambda: -1)
    monkeypatch.setattr(syscalls, "_BURIAL_SECONDS", 0.05)
    with pytest.raises(BlockingIOError, match="fork"):
        syscalls.fork()
