"""The two interfaces: a Sandbox starts Sessions, a Session runs programs. Each method has an async twin with an `a`.

The twins are defined only here: a backend writes each operation once, as a coroutine with the argument `blocking`.
If it is true, it blocks the thread and never waits for a loop, so a plain call needs no loop; if not, it never
blocks the loop. Rules that hold for every backend:

- What the program does (fails, dies, times out, eats its memory, floods, closes everything) is a `Result`.
- What the sandbox does wrong raises `Broken`. After it the session may be closed and another one started.
- Every wait has a deadline: the timeout of the run plus extra seconds. Cancelling an async run kills its whole tree.
- Paths are relative to the session's working folder; no link is followed and nothing outside is reached (`OSError`).
"""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Result

T = TypeVar("T")
Program = str | Sequence[str]
"""Python source, or the words of a command (only if the backend has commands)."""
Files = Mapping[str, bytes]


class Execution(NamedTuple):
    """A program with all its arguments. For a run without a session it includes the files."""

    program: Program
    timeout: float | None
    stdin: bytes
    show_last: bool
    limits: Limits
    files: Files | None = None


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Return the outcome of an operation that was called with `blocking`: it ends without waiting for a loop."""
    try:
        work.send(None)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    raise AssertionError("an operation that was told to block has waited for a loop")


class _Closing:
    """Base class with a `with` block that calls `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session(_Closing, ABC):
    """The session of one episode: variables and files stay from run to run. To share it between threads, use a lock."""

    limits: Limits

    def run(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        """Run Python in the session's process, or a command beside it. `show_last` fills `Result.value`."""
        return run_blocking(self._run(Execution(program, timeout, stdin, show_last, self.limits), True))

    async def arun(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        return await self._run(Execution(program, timeout, stdin, show_last, self.limits), False)

    def put(self, path: str, data: bytes) -> None:
        """Write a file, and create missing folders."""
        run_blocking(self._put(path, data, True))

    async def aput(self, path: str, data: bytes) -> None:
        await self._put(path, data, False)

    def get(self, path: str) -> bytes:
        """Return the content of a regular file, at most `Limits.file_bytes` of it."""
        return run_blocking(self._get(path, True))

    async def aget(self, path: str) -> bytes:
        return await self._get(path, False)

    def listdir(self, path: str = ".") -> list[str]:
        """Return the names in a folder, sorted; names of folders end with a slash."""
        return run_blocking(self._listdir(path, True))

    async def alistdir(self, path: str = ".") -> list[str]:
        return await self._listdir(path, False)

    def reset(self) -> None:
        """Delete variables, processes and files."""
        run_blocking(self._reset(True))

    async def areset(self) -> None:
        await self._reset(False)

    def fork(self) -> "Session":
        """Return a second session with the same variables and a copy of the files. UsageError if `forks` is False."""
        return run_blocking(self._fork(True))

    async def afork(self) -> "Session":
        return await self._fork(False)

    def close(self) -> None:
        """End every process and delete every file. Allowed twice, from any thread, and during a run, which it ends."""
        run_blocking(self._close(True))

    async def aclose(self) -> None:
        await self._close(False)

    @abstractmethod
    async def _run(self, execution: Execution, blocking: bool) -> Result: ...
    @abstractmethod
    async def _put(self, path: str, data: bytes, blocking: bool) -> None: ...
    @abstractmethod
    async def _get(self, path: str, blocking: bool) -> bytes: ...
    @abstractmethod
    async def _listdir(self, path: str, blocking: bool) -> list[str]: ...
    @abstractmethod
    async def _reset(self, blocking: bool) -> None: ...
    @abstractmethod
    async def _fork(self, blocking: bool) -> "Session": ...
    @abstractmethod
    async def _close(self, blocking: bool) -> None: ...


class Sandbox(_Closing, ABC):
    """A backend, opened with its limits. Safe to use from many threads and loops at once."""

    limits: Limits
    has_sessions: ClassVar[bool] = True
    """False if `start` is refused, and programs run one by one."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what is enforced here; this was tested once, when the sandbox opened."""

    def start(self, *, files: Files | None = None, limits: Limits | None = None) -> Session:
        """Start a session with these files in its working folder. `limits` must not be wider than the sandbox's."""
        return run_blocking(self._start(files, self.limits.narrowed(limits), True))

    async def astart(self, *, files: Files | None = None, limits: Limits | None = None) -> Session:
        return await self._start(files, self.limits.narrowed(limits), False)

    def run_once(
        self,
        program: Program,
        *,
        files: Files | None = None,
        timeout: float | None = None,
        stdin: bytes = b"",
        show_last: bool = False,
        limits: Limits | None = None,
    ) -> Result:
        """Run one program in a new session that is deleted when this returns.

        With `show_last` the repr of its last expression is printed, as at the interactive prompt. `Result.value` stays
        None, because the session that would report it is gone.
        """
        execution = Execution(program, timeout, stdin, show_last, self.limits.narrowed(limits), files)
        return run_blocking(self._once(execution, True))

    async def arun_once(
        self,
        program: Program,
        *,
        files: Files | None = None,
        timeout: float | None = None,
        stdin: bytes = b"",
        show_last: bool = False,
        limits: Limits | None = None,
    ) -> Result:
        execution = Execution(program, timeout, stdin, show_last, self.limits.narrowed(limits), files)
        return await self._once(execution, False)

    @abstractmethod
    async def _start(self, files: Files | None, limits: Limits, blocking: bool) -> Session: ...
    @abstractmethod
    async def _once(self, execution: Execution, blocking: bool) -> Result: ...

    @abstractmethod
    def close(self) -> None:
        """End every session and every process of the backend. It may be called twice."""
