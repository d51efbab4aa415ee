"""Runs jobs that compute for long, each in a process that is killed at its deadline.

A thread of the shared pool keeps one process and gives it job after job, as JSON in both directions: nothing is
pickled, and only text comes back. If the process fails while it works on the agent's arguments (it dies, uses up its
memory, takes too long), that is a result for the agent, as for a program of the agent's own. If it cannot be started,
or cannot import the function, the infrastructure has failed. This is not a sandbox: the author wrote the code.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from palaestra.envs.running import process_child
from palaestra.envs.running.process_child import LENGTH, STARTED
from palaestra.envs.running.work import InProcess, Work
from palaestra.errors import Broken, ToolError

START_SECONDS = 60.0
"""Seconds that a process may take to start and to import the tool's module."""
_MAX_REPLY = 2**28
_mine = threading.local()
"""Process of each thread of the pool."""


class WorkerProcess:
    """A process and the socket to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: Work | None = None
        self.socket, child_socket = socket.socketpair()
        program = str(Path(process_child.__file__).resolve())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", program, str(child_socket.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL, pass_fds=(child_socket.fileno(),), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.socket.close()
            raise
        finally:
            child_socket.close()
        self.send({"path": [entry or os.getcwd() for entry in sys.path]}, START_SECONDS)

    def send(self, message: Any, seconds: float) -> None:
        """Send a message as JSON, within `seconds`."""
        self.socket.settimeout(seconds)
        process_child.write(self.socket, message)

    def receive(self, size: int, until: float) -> bytes:
        """Receive `size` bytes; raise TimeoutError at the time `until`, EOFError if the process has ended."""
        data = process_child.exactly(self.socket, size, until)
        if data is None:
            raise EOFError
        return data

    def message(self, until: float) -> dict[str, Any]:
        """Receive a whole message, a JSON object; raise TimeoutError at the time `until`."""
        (size,) = LENGTH.unpack(self.receive(LENGTH.size, until))
        if size > _MAX_REPLY:
            raise ValueError(f"an answer of {size} bytes")
        message = json.loads(self.receive(size, until))
        if not isinstance(message, dict):
            raise ValueError("an answer that is no object")
        return message

    def take(self, work: Work | None) -> None:
        """Set the job that the process works on from now on; None for no job."""
        with self._lock:
            self._work = work
        if work is not None:
            work.child = self

    def stop(self, work: Work) -> None:
        """Kill the process if it still works on this job. Any thread may call this; the job's thread then reads EOF."""
        with self._lock:
            if self._work is work:
                self.kill()

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with suppress(OSError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> str:
        """End the process if it still runs, and return how it ended, such as "ended with status 3"."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)  # It may be exiting by itself, and then its own status says more.
        self.kill()
        self.socket.close()
        status = self.process.wait()
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def run_in_process(work: Work) -> None:
    """Run a job in the process of this thread, and store the outcome in the job. It never raises."""
    child: WorkerProcess | None = None
    started = time.perf_counter()
    try:
        child = _own_child()
        child.take(work)
        started = _run(work, child)
    except BaseException as error:
        work.error = error
    finally:
        work.seconds = time.perf_counter() - started
        if child is not None:
            child.take(None)


def _own_child() -> WorkerProcess:
    child: WorkerProcess | None = getattr(_mine, "child", None)
    if child is None or child.process.poll() is not None:
        _forget(child)
        try:
            child = _mine.child = WorkerProcess()
        except OSError as error:
            raise Broken(f"no process could be started: {error}") from error
    return child


def _forget(child: WorkerProcess | None) -> str:
    _mine.child = None
    return "" if child is None else child.ended()


def _run(work: Work, child: WorkerProcess) -> float:
    """Send the job to the process, store its value, and return the time at which it began."""
    assert isinstance(work.run, InProcess)
    if work.over:  # The job was dropped before it began.
        raise ToolError("given up")
    seconds = work.conditions.seconds
    try:
        until = time.monotonic() + START_SECONDS
        child.send({"function": work.run.function, "data": work.run.data, "seconds": seconds}, START_SECONDS)
        if child.receive(1, until) != STARTED:
            raise Broken(f"its process cannot load it: {child.message(until).get('fault')}")
    except (OSError, EOFError) as error:
        raise Broken(f"its process {_forget(child)} before the call ({type(error).__name__})") from error
    started = time.perf_counter()
    work.pending.inbox.begin((work,))
    try:
        work.value = child.message(time.monotonic() + seconds)["value"]
    except TimeoutError:
        child.kill()
        _forget(child)
        raise ToolError(f"timed out after {seconds:g} s") from None
    # The agent's arguments may cause this: it is not an infrastructure failure.
    except (OSError, EOFError, ValueError, KeyError):
        raise ToolError(f"the process of {work.label} {_forget(child)}") from None
    return started
