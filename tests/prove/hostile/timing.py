"""Time: programs that do not end, do not listen, or are deep inside a call that listens to nothing."""

from .program import hostile

LATE = {"timed_out": True, "limit_hit": "seconds"}


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def infinite_loop(given):
    """A loop."""
    while True:
        pass


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def sleep_forever(given):
    """A wait."""
    import time

    time.sleep(1000)


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def deaf_loop(given):
    """A loop that ignores or blocks every signal it may, and catches whatever is raised in it."""
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for number in signal.valid_signals():
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def regular_expression(given):
    """A pattern that tries for ever."""
    import re

    re.match(r"(a+)+$", "a" * 60 + "b")


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def stopped(given):
    """A process that has stopped itself."""
    import os
    import signal

    if not os.fork():
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        pass


@hostile("", control="outlives", seconds=1.0, expected=LATE)
def busy_threads(given):
    """Threads that run on while the first one waits for them."""
    import threading

    def turn():
        while True:
            pass

    threads = [threading.Thread(target=turn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@hostile("", control="crashes", expected={"exit_code": (None, 1)})
def deep_recursion(given):
    """Deeper than the stack."""
    import sys

    sys.setrecursionlimit(10**9)
    nested = []
    for _ in range(300_000):
        nested = [nested]
    print(repr(nested)[:0])


@hostile("", control="outlives", seconds=120.0, limits={"cpu_seconds": 1.0}, expected={"limit_hit": "cpu_seconds"})
def processor_time(given):
    """All the processor time it can get, while the clock would still allow more."""
    while True:
        pass
