"""What lives as long as our process: closed when it ends, and forgotten by a child that is forked from it.

A child has none of our threads, and what we started is not its own: it must neither use nor end that. Left out: what
is closed and forgotten, which each thing knows of itself.
"""

import atexit
import os
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet


class Living(Protocol):
    """What keeps threads or processes."""

    def close(self) -> None:
        """End them. May come twice."""

    def forget(self) -> None:
        """In a forked child: everything is the parent's."""


_living: WeakSet[Living] = WeakSet()


def close_at_exit(one: Living) -> None:
    """Unless nobody holds it any longer by then; a forked child forgets it."""
    _living.add(one)


def _close_all() -> None:
    with ExitStack() as stack:  # which goes on when one of them fails
        for one in list(_living):
            stack.callback(one.close)


def _forget_all() -> None:
    for one in list(_living):
        one.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
