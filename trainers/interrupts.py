"""Ctrl-C, SIGTERM and a closed terminal: at once where nothing is lost by it, else held back; but never twice.

Left out: what is done about it (`lesson`), and what the user reads afterwards (the command line).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from palaestra.trainers.scale.ranks import here

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The process was asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Interrupts:
    """Within its `with` block the signals raise Interrupted, but where they are `held` the first one is only noted.

    A signal that is ignored stays ignored (`nohup`, a job in the background), and outside the main thread, which alone
    may take signals, nothing changes. Ranks of one job hear a signal at different times: they hold it back until they
    have agreed on it.
    """

    def __init__(self, notice: str = "") -> None:
        """`notice` goes to standard error when a signal is held back."""
        self.asked: int | None = None
        """The first signal that came."""
        self._notice = notice
        self._holding: Callable[[], bool] = lambda: False
        self._before: dict[int, Any] = {}

    @contextmanager
    def held(self, while_true: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Hold the first signal back for the length of a block, and there only `while_true()`."""
        outer, self._holding = self._holding, while_true
        try:
            yield
        finally:
            self._holding = outer

    def agreed(self) -> int | None:
        """The first signal that came, to whichever rank; all must ask."""
        return next((number for number in here().gathered(self.asked) if number is not None), None)

    def check(self) -> None:
        """Raise what was held back."""
        if (number := self.agreed()) is not None:
            raise Interrupted(number)

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._came) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, _: FrameType | None) -> None:
        first, self.asked = self.asked is None, number if self.asked is None else self.asked
        if not (first and (self._holding() or here().count > 1)):
            raise Interrupted(number)
        if self._notice:
            # Not `print`: the signal may have come in the middle of one.
            os.write(2, self._notice.encode())
