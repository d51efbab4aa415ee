"""Tools that compute for long, `@tool(process=True)`: each call runs in a process that its time-out can kill.

A thread of the shared crew keeps one process and hands it call after call, as JSON in both directions: nothing is
pickled, and what comes back is only text. What a process can do wrong while it works on the agent's arguments (die, eat
its memory, take too long) is an answer to the agent, as for a program of the agent's own. A process that cannot be
started, or cannot import the tool, is our failure. This is no sandbox: the tool's author wrote what runs.
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

from palaestra.envs.core.calls import failed
from palaestra.envs.running import process_child
from palaestra.envs.running.inbox import Job
from palaestra.envs.running.process_child import LENGTH, STARTED
from palaestra.episode import Call, Status
from palaestra.errors import Broken, ToolError

START_SECONDS = 60.0
"""How long a process may take to start and to import the tool's module."""
_MAX_REPLY = 2**28
_mine = threading.local()
"""The process of each thread of the crew."""


class Child:
    """One process and the socket to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job: Job | None = None
        self.socket, theirs = socket.socketpair()
        program = str(Path(process_child.__file__).resolve())
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", program, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self.socket.close()
            raise
        finally:
            theirs.close()
        main_file = getattr(sys.modules.get("__main__"), "__file__", None)
        self.send({"path": [entry or os.getcwd() for entry in sys.path], "main": main_file}, START_SECONDS)

    def send(self, message: Any, seconds: float) -> None:
        """Hand over a message."""
        data = json.dumps(message).encode()
        self.socket.settimeout(seconds)
        self.socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self, size: int, until: float) -> bytes:
        """So many bytes of its answer; TimeoutError at `until`, EOFError where it is gone."""
        data = bytearray()
        while len(data) < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            part = self.socket.recv(min(size - len(data), 2**16))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def message(self, until: float) -> dict[str, Any]:
        """A whole message of its."""
        (size,) = LENGTH.unpack(self.receive(LENGTH.size, until))
        if size > _MAX_REPLY:
            raise ValueError(f"an answer of {size} bytes")
        found = json.loads(self.receive(size, until))
        if not isinstance(found, dict):
            raise ValueError("an answer that is no object")
        return found

    def take(self, job: Job | None) -> None:
        """What it works on from now on."""
        with self._lock:
            self._job = job
        if job is not None:
            job.child = self

    def stop(self, job: Job) -> None:
        """End it if it still works on this job, from any thread; the one that keeps it then reads an end."""
        with self._lock:
            if self._job is job:
                self.kill()

    def kill(self) -> None:
        """End it and whatever it started."""
        with suppress(OSError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> str:
        """Make sure that it is gone; how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.2)  # It may be on its way out by itself, and then its own status is the better story.
        self.kill()
        self.socket.close()
        status = self.process.wait()
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def run_in_process(job: Job) -> Call:
    """Run a job in this thread's process. Never raises."""
    child: Child | None = None
    try:
        child = _own_child()
        child.take(job)
        return _run(job, child)
    except BaseException as error:
        return failed(job.prepared, error)
    finally:
        if child is not None:
            child.take(None)


def _own_child() -> Child:
    child: Child | None = getattr(_mine, "child", None)
    if child is None or child.process.poll() is not None:
        _forget(child)
        try:
            child = _mine.child = Child()
        except OSError as error:
            raise Broken(f"no process could be started: {error}") from error
    return child


def _forget(child: Child | None) -> str:
    _mine.child = None
    return "" if child is None else child.ended()


def _run(job: Job, child: Child) -> Call:
    """Hand the call over, then wait for its answer."""
    tool = job.prepared.tool
    assert tool is not None
    if job.over:  # Given up before it began.
        return failed(job.prepared, ToolError("given up"))
    try:
        request = {
            "module": tool.function.__module__, "function": tool.function.__qualname__, "attribute": tool.attribute,
            "owner": type(job.prepared.owner).__name__, "name": tool.name, "arguments": job.prepared.arguments,
        }  # fmt: skip
        until = time.monotonic() + START_SECONDS
        child.send(request, START_SECONDS)
        if child.receive(1, until) != STARTED:
            raise Broken(f"its process cannot load it: {child.message(until).get('text')}")
    except (OSError, EOFError) as error:
        raise Broken(f"its process {_forget(child)} before the call ({type(error).__name__})") from error
    begun = time.perf_counter()
    job.turn.inbox.begin((job,))
    try:
        found = child.message(time.monotonic() + tool.timeout)
        status, text = Status(found["status"]), str(found["text"])
    except TimeoutError:
        child.kill()
        _forget(child)
        return failed(job.prepared, ToolError(f"timed out after {tool.timeout:g} s"), time.perf_counter() - begun)
    except (OSError, EOFError, ValueError, KeyError):  # The agent's arguments are in its reach: no failure of ours.
        how = _forget(child)
        return failed(job.prepared, ToolError(f"the process of {tool.name} {how}"), time.perf_counter() - begun)
    return Call(job.prepared.name, job.prepared.arguments, text, status, time.perf_counter() - begun)
