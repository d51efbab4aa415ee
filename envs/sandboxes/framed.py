"""The client's side of a runner's protocol: it sends requests over a stream of any kind, and checks the replies.

A backend whose programs run in a runner is a subclass of `FramedSandbox`. The subclass defines how a stream is opened
(a local socket, a container's stdin and stdout, or HTTP) and which stream serves a program without a session. Every
field of a reply is checked, because untrusted programs run beside the runner.
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
from palaestra.envs.sandboxes.runner.wire import RESULT, RUN, FrameHead, Header, pack
from palaestra.envs.sandboxes.sandbox import Execution, Files, Sandbox, Session, run_blocking
from palaestra.envs.sandboxes.streams import SPARE_BYTES, Stream
from palaestra.errors import Broken, SandboxUnavailable, UsageError
from palaestra.frozen import statically_frozen

_LIMITED = get_args(Limited)
T = TypeVar("T")


@statically_frozen
class FrameRequest(Generic[T]):
    """A frame to send, with the timeout and the largest body of its reply, and the function that reads the reply."""

    frame: bytes
    read: Callable[[FrameHead, bytes], T]
    body_bytes: int = SPARE_BYTES
    seconds: float = 0.0

    async def over(self, stream: Stream, blocking: bool) -> T:
        return self.read(*await stream.exchange(self.frame, self.body_bytes, self.seconds + stream.grace, blocking))

    async def first_over(self, stream: Stream, blocking: bool) -> T:
        """Exchange the first request of a stream, and drop the stream if it fails."""
        try:
            return await self.over(stream, blocking)
        except BaseException:
            stream.drop()
            raise


def _opening(operation: str, limits: Limits, files: Files | None, *bodies: bytes) -> bytes:
    """Return the frame that starts a session or a one-shot run: limits, initial files, and further bodies."""
    contents = arguments.files_of(files, limits)
    sizes_by_path = [(path, len(data)) for path, data in contents.items()]
    return pack({"op": operation, "limits": asdict(limits), "files": sizes_by_path}, *contents.values(), *bodies)


def run_request(execution: Execution, alone: bool = False) -> FrameRequest[Result] | Result:
    """Return the request that runs a program, or a Result if the program or stdin is too large.

    `alone` is True for a run without a session; the request then includes limits and files.
    """
    program, timeout, stdin, show_last, limits, files = execution
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
    return FrameRequest(frame, read_result, 3 * limits.output_bytes + SPARE_BYTES, seconds)


def read_result(head: FrameHead, body: bytes) -> Result:
    """Return the Result in a reply; raise `Broken` if one of its fields is wrong."""
    if not isinstance(head, bytes):
        checked(head)
        raise Broken("the sandbox's runner sent no result")
    if len(head) != RESULT.size:
        raise Broken(f"the sandbox's runner sent a result of {len(head)} bytes; expected {RESULT.size}")
    code, number, late, oom, lost, limit, out_all, err_all, seconds, cpu, rss, out, err, value = RESULT.unpack(head)
    if out + err + max(value, 0) != len(body):
        raise Broken("the sandbox's runner sent a result whose sizes do not fit")
    if limit >= len(_LIMITED):
        raise Broken(f"the sandbox's runner sent a limit that is not known: {limit}")
    if not (isfinite(seconds) and isfinite(cpu)):
        raise Broken(f"the sandbox's runner sent times that are none: {seconds} s, {cpu} s of CPU")
    stdout = body[:out].decode("utf-8", "replace")
    stderr = body[out : out + err].decode("utf-8", "replace")
    text = None if value < 0 else body[out + err :].decode("utf-8", "replace")
    ended = None if code < 0 else code, None if number < 0 else number
    return Result(stdout, stderr, text, *ended, late, oom, _LIMITED[limit], out_all, err_all, lost, seconds, cpu, rss)


def checked(head: FrameHead, path: str | None = None) -> Header:
    """Return the head of a reply, or raise the error that it contains. `path` is the file of an OSError."""
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


def _acknowledged(head: FrameHead, body: bytes) -> Header:
    return checked(head)


def first_words(stream: Stream, backend: str, seconds: float) -> Header:
    """Return the capabilities that a runner reports when it has started, or raise SandboxUnavailable."""
    header = checked(run_blocking(stream.exchange(b"", SPARE_BYTES, seconds, True))[0])
    if "unavailable" in header:
        raise SandboxUnavailable(backend, str(header["unavailable"]), map(str, header["remedies"]))
    capabilities: Header = header["capabilities"]
    return capabilities


class FramedSession(Session):
    """A session that sends its requests over a stream.

    `begin` is called to start a fork of the session on another stream.
    """

    def __init__(self, begin: "Callable[..., Any]", stream: Stream, limits: Limits, name: Any) -> None:
        self.limits = limits
        self._begin, self._stream, self._name = begin, stream, name
        self._busy = threading.Lock()
        self._closed = self._interrupted = False

    async def _run(self, execution: Execution, blocking: bool) -> Result:
        request = run_request(execution)
        return request if isinstance(request, Result) else await self._call(request, blocking)

    async def _put(self, path: str, data: bytes, blocking: bool) -> None:
        if len(arguments.content("data", data)) > self.limits.file_bytes:
            raise OSError(27, f"{len(data)} bytes; a file may have {self.limits.file_bytes}", path)
        frame = pack({"op": "put", "path": arguments.path_of(path)}, data)
        await self._call(FrameRequest(frame, lambda head, body: checked(head, path)), blocking)

    async def _get(self, path: str, blocking: bool) -> bytes:
        frame = pack({"op": "get", "path": arguments.path_of(path)})
        body_bytes = self.limits.file_bytes + SPARE_BYTES
        return await self._call(
            FrameRequest(frame, lambda head, body: (checked(head, path), body)[1], body_bytes), blocking
        )

    async def _listdir(self, path: str, blocking: bool) -> list[str]:
        frame = pack({"op": "listdir", "path": arguments.path_of(path)})
        body_bytes = self.limits.scratch_files * 2048 + SPARE_BYTES
        return await self._call(FrameRequest(frame, lambda head, body: _names(head, body, path), body_bytes), blocking)

    async def _reset(self, blocking: bool) -> None:
        await self._call(FrameRequest(pack({"op": "reset"}), _acknowledged), blocking)

    async def _fork(self, blocking: bool) -> Session:
        self._take()
        try:
            request = FrameRequest(pack({"op": "fork", "of": self._name}), _acknowledged)
            fork: Session = await self._begin(self._stream.beside(), request, self.limits, blocking)
            return fork
        finally:
            self._busy.release()

    async def _close(self, blocking: bool) -> None:
        """Close the session. A run in progress on another thread ends with Broken."""
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
        """Drop the session without a close request, because the sandbox closes and the runner ends too."""
        self._closed = True
        self._stream.drop()

    def forget(self) -> None:
        """Drop the session in a forked child process. The parent keeps it."""
        self._closed = True
        self._stream.forget()

    async def _call(self, request: FrameRequest[T], blocking: bool) -> T:
        self._take()
        try:
            return await request.over(self._stream, blocking)
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
    """A backend whose programs run in a runner at the other end of a stream."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[FramedSession] = weakref.WeakSet()

    @abstractmethod
    async def _connect(self, limits: Limits, blocking: bool) -> Stream:
        """Return a stream for one new session."""

    @abstractmethod
    async def _alone(self, request: FrameRequest[Result], limits: Limits, blocking: bool) -> Result:
        """Run a program without a session."""

    async def _start(self, files: Files | None, limits: Limits, blocking: bool) -> FramedSession:
        request = FrameRequest(_opening("start", limits, files), _acknowledged)
        return await self._begin(await self._connect(limits, blocking), request, limits, blocking)

    async def _begin(
        self, stream: Stream, request: FrameRequest[Header], limits: Limits, blocking: bool
    ) -> FramedSession:
        name = (await request.first_over(stream, blocking)).get("session")
        session = FramedSession(self._begin, stream, limits, name)
        self._sessions.add(session)
        return session

    async def _once(self, execution: Execution, blocking: bool) -> Result:
        request = run_request(execution, alone=True)
        return request if isinstance(request, Result) else await self._alone(request, execution.limits, blocking)


def _names(head: FrameHead, body: bytes, path: str) -> list[str]:
    checked(head, path)
    try:
        names = json.loads(body)
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Broken("the sandbox's runner sent a list of files that is none")
    return names
