"""The client's half of a session with a runner, over any stream of bytes: requests made, replies checked.

`FramedSession` is a Session; a backend gives it a `Stream` (a socket here, a container's stdin and stdout elsewhere).
`run_once_request` serves backends that run a program without keeping a session. What comes back is checked field by
field: the runner is ours, but it lives next to programs that are not.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, get_args

from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Limited, Result
from palaestra.envs.sandboxes.runner.wire import RESULT, RUN, Head, Header, pack
from palaestra.envs.sandboxes.sandbox import OneShot, Program, Session
from palaestra.envs.sandboxes.streams import SocketStream, Stream
from palaestra.errors import Broken, UsageError
from palaestra.frozen import statically_frozen

GRACE_SECONDS = 75.0
"""For an answer beyond a run's own time: a zygote that must first warm up, gigabytes that must first be freed."""
SPARE_BYTES = 2**16
"""Of a reply's body, beside what the limits allow: the line that says how much is missing, names of files."""
_NAMES = [field.name for field in fields(Limits)]
_LIMITED = get_args(Limited)
T = TypeVar("T")
__all__ = [
    "FramedSession",
    "Request",
    "SocketStream",
    "Stream",
    "checked",
    "read_result",
    "run_once_request",
    "start_request",
]


@statically_frozen
class Request(Generic[T]):
    """A frame to send, how long the answer may take and how large it may be, and what it means."""

    frame: bytes
    read: Callable[[Head, bytes], T]
    body_bytes: int = SPARE_BYTES
    seconds: float = 0.0

    def over(self, stream: Stream) -> T:
        return self.read(*stream.exchange(self.frame, self.body_bytes, self.seconds + GRACE_SECONDS))

    async def aover(self, stream: Stream) -> T:
        return self.read(*await stream.aexchange(self.frame, self.body_bytes, self.seconds + GRACE_SECONDS))


def start_request(limits: Limits, files: Mapping[str, bytes] | None, **more: Any) -> Request[Header]:
    names, contents = _files(files, limits)
    header = {"op": "start", "limits": _plainly(limits), "files": names, **more}
    return Request(pack(header, *contents), lambda reply, body: checked(reply))


def run_once_request(asked: OneShot) -> Request[Result] | Result:
    """A whole life in one frame; a Result at once where the program is larger than a program may be."""
    names, contents = _files(asked.files, asked.limits)
    header = {"op": "once", "limits": _plainly(asked.limits), "files": names}
    return _run_request(asked.limits, asked.program, asked.timeout, asked.stdin, asked.show_last, header, contents)


def _run_request(
    limits: Limits,
    program: Program,
    timeout: float | None,
    stdin: bytes,
    last: bool,
    header: Header | None = None,
    before: Sequence[bytes] = (),
) -> Request[Result] | Result:
    """A run in a session; with a header, a run that brings its own place."""
    is_command, content = _program(program)
    seconds = arguments.seconds_of(timeout) or limits.seconds
    for what, size in (("program", len(content)), ("stdin", len(arguments.content("stdin", stdin)))):
        if size > limits.code_bytes:
            text = f"the {what} is {size} bytes; at most {limits.code_bytes} are taken\n"
            return Result(exit_code=1, limit_hit="code", stderr=text, stderr_bytes=len(text))
    run = RUN.pack(is_command, last, seconds, len(content))
    frame = pack(run, content, stdin) if header is None else pack(header, *before, run, content, stdin)
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
        raise Broken(f"the sandbox's runner sent an error that cannot be read: {error!r}")
    text = str(error.get("text"))
    if error.get("kind") == "usage":
        raise UsageError(text)
    if error.get("kind") == "os":
        raise OSError(int(error.get("errno") or 0), text, *[path] * (path is not None))
    raise Broken(text)


class FramedSession(Session):
    """A session on a stream. `branch` makes the stream and the request of a fork, where the backend can."""

    def __init__(self, stream: Stream, limits: Limits) -> None:
        self._stream, self._limits = stream, limits
        self._busy = threading.Lock()
        self._closed = self._interrupted = False

    def run(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        request = _run_request(self._limits, program, timeout, stdin, show_last)
        return request if isinstance(request, Result) else self._call(request)

    async def arun(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        request = _run_request(self._limits, program, timeout, stdin, show_last)
        return request if isinstance(request, Result) else await self._acall(request)

    def put(self, path: str, data: bytes) -> None:
        self._call(self._put_request(path, data))

    async def aput(self, path: str, data: bytes) -> None:
        await self._acall(self._put_request(path, data))

    def get(self, path: str) -> bytes:
        return self._call(self._get_request(path))

    async def aget(self, path: str) -> bytes:
        return await self._acall(self._get_request(path))

    def listdir(self, path: str = ".") -> list[str]:
        return self._call(self._list_request(path))

    async def alistdir(self, path: str = ".") -> list[str]:
        return await self._acall(self._list_request(path))

    def reset(self) -> None:
        self._call(_plain({"op": "reset"}))

    async def areset(self) -> None:
        await self._acall(_plain({"op": "reset"}))

    def fork(self) -> Session:
        raise UsageError("this backend cannot fork a session; see Capabilities.forks")

    async def afork(self) -> Session:
        return self.fork()

    def close(self) -> None:
        """A run that is under way in another thread ends with Broken."""
        if self._closed:
            return
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                with contextlib.suppress(Broken):
                    _plain({"op": "close"}).over(self._stream)
            finally:
                self._busy.release()
        self._stream.drop()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                with contextlib.suppress(Broken):
                    await _plain({"op": "close"}).aover(self._stream)
            finally:
                self._busy.release()
        self._stream.drop()

    def _put_request(self, path: str, data: bytes) -> Request[None]:
        if len(arguments.content("data", data)) > self._limits.file_bytes:
            raise OSError(27, f"{len(data)} bytes; a file may have {self._limits.file_bytes}", path)
        request = pack({"op": "put", "path": arguments.path_of(path)}, data)
        return Request(request, lambda head, body: _nothing(head, body, path))

    def _get_request(self, path: str) -> Request[bytes]:
        most = self._limits.file_bytes + SPARE_BYTES
        request = pack({"op": "get", "path": arguments.path_of(path)})
        return Request(request, lambda head, body: (checked(head, path), body)[1], most)

    def _list_request(self, path: str) -> Request[list[str]]:
        most = self._limits.scratch_files * 2048 + SPARE_BYTES
        request = pack({"op": "listdir", "path": arguments.path_of(path)})
        return Request(request, lambda head, body: _names(head, body, path), most)

    def _call(self, request: Request[T]) -> T:
        self._take()
        try:
            return request.over(self._stream)
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        finally:
            self._busy.release()

    async def _acall(self, request: Request[T]) -> T:
        with self._using():
            try:
                return await request.aover(self._stream)
            except asyncio.CancelledError:
                self._interrupted = True
                raise

    @contextlib.contextmanager
    def _using(self) -> Generator[None]:
        self._take()
        try:
            yield
        finally:
            self._busy.release()

    def _take(self) -> None:
        if self._closed:
            raise UsageError("the session is closed")
        if self._interrupted:
            raise UsageError("an earlier call was cancelled, which ended this session; start another one")
        if not self._busy.acquire(blocking=False):
            raise UsageError("the session is in use: one call at a time, or a lock around them")


def _plain(header: Header) -> Request[None]:
    return Request(pack(header), _nothing)


def _nothing(head: Head, body: bytes, path: str | None = None) -> None:
    checked(head, path)


def _names(head: Head, body: bytes, path: str) -> list[str]:
    checked(head, path)
    names = json.loads(body)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Broken("the sandbox's runner sent a list of files that is none")
    return names


def _plainly(limits: Limits) -> dict[str, float]:
    return {name: getattr(limits, name) for name in _NAMES}


def _files(files: Mapping[str, bytes] | None, limits: Limits) -> tuple[list[tuple[str, int]], list[bytes]]:
    given = arguments.files_of(files, limits)
    return [(path, len(data)) for path, data in given.items()], list(given.values())


def _program(program: Program) -> tuple[bool, bytes]:
    """Whether it is a command, and what to send."""
    if isinstance(program, str):
        return False, program.encode("utf-8", "surrogatepass")
    return True, json.dumps(arguments.words_of(program)).encode()
