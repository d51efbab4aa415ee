"""A client's stream: it reads requests, executes one at a time, and answers. When it closes, its session ends.

`supervisor` is the loop that calls this module, and `sessions` executes the requests.
"""

import json
import os
from collections.abc import Generator
from typing import Any

from . import wire
from .cells import CellMessage, Host
from .runs import Failure, read_run
from .sessions import RunnerSession

BODY_BYTES = 2**28
"""Maximum bytes of a request's body, which may hold a session's initial files."""
_buffer = bytearray(2**18)
_view = memoryview(_buffer)


class ClientConnection:
    """One client's stream, with its session and the steps of the request in progress."""

    def __init__(self, supervisor: Host, reading: int, writing: int, preload: str) -> None:
        self._supervisor, self._reading, self._writing = supervisor, reading, writing
        self._preload = preload
        self._reader = wire.FrameReader(BODY_BYTES)
        self._out = b""
        self._clogged = False
        self._steps: Generator[float, None, Any] | None = None
        self._session: RunnerSession | None = None
        self._number = 0
        self.deadline = float("inf")
        supervisor.watch(reading, self._readable)

    def wake(self) -> None:
        self._supervisor.wake(self)

    def _readable(self) -> None:
        if self._out:
            self._flush()
        try:
            size = os.readv(self._reading, [_buffer])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self.end()
            return
        try:
            self._reader.feed(_view[:size])
            if self._steps is None and (frame := self._reader.take()) is not None:
                self._steps = self._answer(*frame)
                self.step()
        except wire.FrameError:
            self.end()

    def step(self) -> None:
        """Continue the request in progress, and send its reply when it is done."""
        if self._steps is None:
            return
        try:
            self.deadline = next(self._steps)
            self._supervisor.wait(self, self.deadline)
            return
        except StopIteration as done:
            head, parts = done.value
        except Failure as error:
            head, parts = {"error": {"kind": error.kind, "errno": error.number, "text": str(error)}}, ()
        except (KeyError, TypeError, ValueError) as error:
            head, parts = {"error": {"kind": "usage", "text": f"a request that cannot be read: {error!r}"}}, ()
        except OSError as error:
            head, parts = {"error": {"kind": "broken", "text": f"the supervisor could not go on: {error}"}}, ()
        self._steps = None
        self._supervisor.wait(self, None)
        self._out += wire.pack(head, *parts)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[os.write(self._writing, self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            self.end()
            return
        if self._reading == self._writing:
            if bool(self._out) != self._clogged:
                self._clogged = not self._clogged
                self._supervisor.want_to_write(self._writing, self._clogged)
        elif self._out:  # a pipe: the one client there is will read what it asked for
            os.set_blocking(self._writing, True)

    def _answer(self, head: wire.FrameHead, body: bytes) -> Generator[float, None, Any]:
        if isinstance(head, bytes):
            if self._session is None:
                raise Failure("usage", "a run needs a session; start one first")
            return (yield from self._session.run(read_run(head, body)))
        name = head["op"]
        if name in ("start", "once", "fork"):
            if self._session is not None:
                raise Failure("usage", "a session is open on this connection already")
            return (yield from self._open(name, head, body))

        session = self._session
        if session is None:
            raise Failure("usage", f"{name!r} needs a session; start one first")
        if name == "put":
            session.put(head["path"], body)
        elif name == "get":
            return {"ok": True}, (session.get(head["path"]),)
        elif name == "listdir":
            return {"ok": True}, (json.dumps(session.listdir(head["path"])).encode(),)
        elif name == "reset":
            yield from session.reset()
        elif name == "close":
            self._forget()
            yield from session.close()
        else:
            raise Failure("usage", f"no request is named {name!r}")
        return {"ok": True}, ()

    def _open(self, name: str, header: CellMessage, body: bytes) -> Generator[float, None, Any]:
        original = self._supervisor.sessions.get(header["of"]) if name == "fork" else None
        if name == "fork" and original is None:
            raise Failure("usage", "the session to fork is closed")
        limits = original.limits if original is not None else header["limits"]
        session = RunnerSession(self._supervisor, self, limits, self._preload)
        if name == "once":
            contents, run_bytes = _cut_files(header["files"], body)
            return (yield from session.once(contents, read_run(run_bytes[: wire.RUN.size], run_bytes[wire.RUN.size :])))
        try:
            if original is not None:
                yield from session.fork(original)
            else:
                yield from session.start(_cut_files(header["files"], body)[0])
        except BaseException:
            session.leave()
            raise
        self._session = session
        self._number = self._supervisor.add_session(session)
        return {"ok": True, "session": self._number}, ()

    def _forget(self) -> None:
        self._session = None
        self._supervisor.sessions.pop(self._number, None)

    def end(self) -> None:
        """End the session and the request of a client that has closed its stream."""
        self._supervisor.unwatch(self._reading)
        self._supervisor.wait(self, None)
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        if self._session is not None:
            self._session.leave()
            self._forget()
        self._supervisor.connections.discard(self)
        if self._reading != self._writing:
            self._supervisor.stop()
            return
        os.close(self._reading)


def _cut_files(files: list[list[Any]], body: bytes) -> tuple[list[tuple[str, bytes]], bytes]:
    """Return the files that a session starts with, from the front of a body, and the rest of the body."""
    contents, at = [], 0
    for path, size in files:
        contents.append((path, body[at : at + size]))
        at += size
    return contents, body[at:]
