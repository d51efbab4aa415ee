"""The client's half of a runner's protocol, over any stream: requests made, replies checked.

A backend whose programs a runner runs is a `FramedSandbox`: it says how a stream is had (a socket here, a container's
stdin and stdout, HTTP) and which of them serves a program that runs without a session. What comes back is checked field
by field: the runner is ours, but it lives next to programs that are not.
"""

import asyncio
import json
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from math import isfinite
from typing import Any, Generic, TypeVar, get_args

from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Limited, Result
from palaestra.envs.sandboxes.runner.wire import RESULT, RUN, Head, Header, pack
from palaestra.envs.sandboxes.sandbox import Execution, Files, Sandbox, Session, run_blocking
from palaestra.envs.sandboxes.streams import SPARE_BYTES, Stream
from palaestra.errors import Broken, SandboxUnavailable, UsageError
from palaestra.frozen import statically_frozen

_LIMITED = get_args(Limited)
T = TypeVar("T")


@statically_frozen
class Request(Generic[T]):
    """A frame to send, how long the answer may take and how large it may be, and what it means."""

    frame: bytes
    read: Callable[[Head, bytes], T]
    body_bytes: int = SPARE_BYTES
    seconds: float = 0.0

    async def over(self, stream: Stream, blocking: bool) -> T:
        return self.read(*await stream.exchange(self.frame, self.body_bytes, self.seconds + stream.grace, blocking))

    async def first_over(self, stream: Stream, blocking: bool) -> T:
        """The first request of a stream, which is dropped where it fails."""
        try:
            return await self.over(stream, blocking)
        except BaseException:
            stream.drop()
            raise


def _opening(operation: str, limits: Limits, files: Files | None, *rest: bytes) -> bytes:
    """What begins a place: its limits, the files to begin with, and what comes behind them."""
    given = arguments.files_of(files, limits)
    listed = [(path, len(data)) for path, data in given.items()]
    return pack({"op": operation, "limits": asdict(limits), "files": listed}, *given.values(), *rest)


def run_request(asked: Execution, alone: bool = False) -> Request[Result] | Result:
    """A run in a session, or a whole life in one frame; a Result at once where the program is larger than it may be."""
    program, timeout, stdin, show_last, limits, files = asked
    if isinstance(program, str):
        is_command, content = False, program.encode("utf-8", "surrogatepass")
    else:
        is_command, content = True, json.dumps(arguments.words_of(program)).encode()
    seconds = limits.seconds if timeout is None else arguments.seconds_of(timeout)
    stdin = arguments.content("stdin", stdin)
    for what, size in (("program", len(content)), ("stdin", len(stdin))):
        if size > limits.code_bytes:
            text = f"the {what} is {size} bytes; at most {limits.code_bytes} are taken\n"
            return Result(exit_code=1, limit_hit="code", stderr=text, stderr_bytes=len(text))
    run = RUN.pack(is_command, show_last, seconds, len(content))
    frame = _opening("once", limits, files, run, content, stdin) if alone else pack(run, content, stdin)
    return Request(frame, read_result, 3 * limits.output_bytes + SPARE_BYTES, seconds)


def read_result(head: Head, body: bytes) -> Result:
    """A Result from a reply, each field looked at."""
    if not isinstance(head, bytes):
        checked(head)
        raise Broken("the sandbox's runner sent no result")
    if len(head) != RESULT.size:
        raise Broken(f"the sandbox's runner sent a result of {len(head)} bytes; expected {RESULT.size}")
    code, number, late, oom, lost, limit, out_all, err_all, seconds, cpu, held, out, err, value = RESULT.unpack(head)
    if out + err + max(value, 0) != len(body):
        raise Broken("the sandbox's runner sent a result whose sizes do not fit")
    if limit >= len(_LIMITED):
        raise Broken(f"the sandbox's runner sent a limit that is not known: {limit}")
    if not (isfinite(seconds) and isfinite(cpu)):
        raise Broken(f"the sandbox's runner sent times that are none: {seconds} s, {cpu} s of CPU")
    stdout = body[:out].decode("utf-8", "replace")
    stderr = body[out : out + err].decode("utf-8", "replace")
    shown = None if value < 0 else body[out + err :].decode("utf-8", "replace")
    ended = None if code < 0 else code, None if number < 0 else number
    return Result(stdout, stderr, shown, *ended, late, oom, _LIMITED[limit], out_all, err_all, lost, seconds, cpu, held)


def checked(head: Head, path: str | None = None) -> Header:
    """A reply, or the error it tells of, which may be about a file."""
    if isinstance(head, bytes):
        raise Broken("the sandbox's runner sent a result that nobody asked for")
    error = head.get("error")
    if error is None:
        return head
    if not isinstance(error, dict):
        raise Broken(f"the sandbox's runner sent an error that cannot be read: {error!r:.200}")
    text, number = str(error.get("text")), error.get("errno")
    if error.get("kind") == "usage":
        raise UsageError(text)
    if error.get("kind") == "os":
        raise OSError(number if isinstance(number, int) else 0, text, *[path] * (path is not None))
    raise Broken(text)


def _acknowledged(head: Head, body: bytes) -> Header:
    return checked(head)


def first_words(stream: Stream, backend: str, seconds: float) -> Header:
    """What a runner says of itself when it has started: what it enforces, or SandboxUnavailable."""
    said = checked(run_blocking(stream.exchange(b"", SPARE_BYTES, seconds, True))[0])
    if "unavailable" in said:
        raise SandboxUnavailable(backend, str(said["unavailable"]), map(str, said["remedies"]))
    capabilities: Header = said["capabilities"]
    return capabilities


class FramedSession(Session):
    """A session on a stream. `begin` starts a fork of it on another stream."""

    def __init__(self, begin: "Callable[..., Any]", stream: Stream, limits: Limits, name: Any) -> None:
        self.limits = limits
        self._begin, self._stream, self._name = begin, stream, name
        self._busy = threading.Lock()
        self._closed = self._interrupted = False

    async def _run(self, asked: Execution, blocking: bool) -> Result:
        request = run_request(asked)
        return request if isinstance(request, Result) else await self._call(request, blocking)

    async def _put(self, path: str, data: bytes, blocking: bool) -> None:
        if len(arguments.content("data", data)) > self.limits.file_bytes:
            raise OSError(27, f"{len(data)} bytes; a file may have {self.limits.file_bytes}", path)
        frame = pack({"op": "put", "path": arguments.path_of(path)}, data)
        await self._call(Request(frame, lambda head, body: checked(head, path)), blocking)

    async def _get(self, path: str, blocking: bool) -> bytes:
        frame = pack({"op": "get", "path": arguments.path_of(path)})
        most = self.limits.file_bytes + SPARE_BYTES
        return await self._call(Request(frame, lambda head, body: (checked(head, path), body)[1], most), blocking)

    async def _listdir(self, path: str, blocking: bool) -> list[str]:
        frame = pack({"op": "listdir", "path": arguments.path_of(path)})
        most = self.limits.scratch_files * 2048 + SPARE_BYTES
        return await self._call(Request(frame, lambda head, body: _names(head, body, path), most), blocking)

    async def _reset(self, blocking: bool) -> None:
        await self._call(Request(pack({"op": "reset"}), _acknowledged), blocking)

    async def _fork(self, blocking: bool) -> Session:
        self._take()
        try:
            request = Request(pack({"op": "fork", "of": self._name}), _acknowledged)
            fork: Session = await self._begin(self._stream.beside(), request, self.limits, blocking)
            return fork
        finally:
            self._busy.release()

    async def _close(self, blocking: bool) -> None:
        """A run that is under way in another thread ends with Broken."""
        if self._closed:
            return
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                await self._stream.leave(blocking)
            finally:
                self._busy.release()
        self._stream.drop()

    def lose(self) -> None:
        """The sandbox closes: no farewell, the runner goes as well."""
        self._closed = True
        self._stream.drop()

    def forget(self) -> None:
        """In a forked child: the session is the parent's."""
        self._closed = True
        self._stream.forget()

    async def _call(self, request: Request[T], blocking: bool) -> T:
        self._take()
        try:
            stream = self._stream  # As `Request.over` does it, without one coroutine more: this is the short road.
            seconds = request.seconds + stream.grace
            return request.read(*await stream.exchange(request.frame, request.body_bytes, seconds, blocking))
        except (KeyboardInterrupt, asyncio.CancelledError):
            self._interrupted = True
            raise
        finally:
            self._busy.release()

    def _take(self) -> None:
        if self._interrupted:
            raise UsageError("an earlier call was cancelled, which ended this session; start another one")
        if self._closed:
            raise UsageError("the session is closed; start another one")
        if not self._busy.acquire(blocking=False):
            raise UsageError("the session is in use: one call at a time, or a lock around them")


class FramedSandbox(Sandbox):
    """A backend whose programs a runner runs, at the other end of a stream."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[FramedSession] = weakref.WeakSet()

    @abstractmethod
    async def _connect(self, limits: Limits, blocking: bool) -> Stream:
        """A stream for a session of its own."""

    @abstractmethod
    async def _alone(self, request: Request[Result], limits: Limits, blocking: bool) -> Result:
        """Run a program without a session."""

    async def _start(self, files: Files | None, limits: Limits, blocking: bool) -> FramedSession:
        request = Request(_opening("start", limits, files), _acknowledged)
        return await self._begin(await self._connect(limits, blocking), request, limits, blocking)

    async def _begin(self, stream: Stream, request: Request[Header], limits: Limits, blocking: bool) -> FramedSession:
        name = (await request.first_over(stream, blocking)).get("session")
        session = FramedSession(self._begin, stream, limits, name)
        self._sessions.add(session)
        return session

    async def _once(self, asked: Execution, blocking: bool) -> Result:
        request = run_request(asked, alone=True)
        return request if isinstance(request, Result) else await self._alone(request, asked.limits, blocking)


def _names(head: Head, body: bytes, path: str) -> list[str]:
    checked(head, path)
    try:
        names = json.loads(body)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Broken("the sandbox's runner sent a list of files that is none")
    return names
