"""Handle Ctrl-C, SIGTERM and a closed terminal: at once if no work is lost, otherwise later. A second signal is handled
at once.

Not in this module: what a run does on an interrupt (`session`), and the message to the user (the command line).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from palaestra.trainers.scale.ranks import here

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Exception for a signal that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Interrupts:
    """Context manager in which signals raise `Interrupted`; within `hold` the first signal is only stored.

    A signal that the process ignores stays ignored (`nohup`, a background job). Outside the main thread nothing
    changes, because Python handles signals only in the main thread. With several ranks the first signal is always
    stored, because ranks receive it at different times; `check` then raises `Interrupted` in all ranks.
    """

    def __init__(self, notice: str = "") -> None:
        """Create the handler. `notice` is written to standard error when a signal is stored."""
        self.pending: int | None = None
        """Number of the first signal received; None if there was none."""
        self._notice = notice
        self._holding: Callable[[], bool] = lambda: False
        self._before: dict[int, Any] = {}

    @contextmanager
    def hold(self, while_true: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Within the block, store the first signal and do not raise it, if `while_true()` is True when it arrives."""
        outer, self._holding = self._holding, while_true
        try:
            yield
        finally:
            self._holding = outer

    def agreed(self) -> int | None:
        """Return the first signal that any rank received; None if there was none. All ranks must call this method."""
        return next((number for number in here().gathered(self.pending) if number is not None), None)

    def check(self) -> None:
        """Raise `Interrupted` if any rank has stored a signal."""
        if (number := self.agreed()) is not None:
            raise Interrupted(number)

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        first, self.pending = self.pending is None, number if self.pending is None else self.pending
        if not (first and (self._holding() or here().count > 1)):
            raise Interrupted(number)
        if self._notice:
            # Not `print`: the signal may have come in the middle of one.
            os.write(2, self._notice.encode())
