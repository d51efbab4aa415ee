"""Registry of objects that live as long as our process: closed when it ends, and forgotten by a forked child.

A forked child has none of our threads, and the processes that we started do not belong to it: it must neither use nor
end them. Left out: how each object is closed and forgotten.
"""

import atexit
import os
from contextlib import ExitStack
from typing import Protocol
from weakref import WeakSet


class Living(Protocol):
    """Interface of an object that holds threads or processes."""

    def close(self) -> None:
        """End the threads or processes. It may be called twice."""

    def forget(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""


_living: WeakSet[Living] = WeakSet()


def close_at_exit(living: Living) -> None:
    """Close the object when the process exits, if it still exists then; a forked child forgets it."""
    _living.add(living)


def _close_all() -> None:
    with ExitStack() as stack:  # It continues when one of them fails.
        for living in list(_living):
            stack.callback(living.close)


def _forget_all() -> None:
    for living in list(_living):
        living.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
