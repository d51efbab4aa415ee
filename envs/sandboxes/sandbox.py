"""The two interfaces: a Sandbox starts Sessions, a Session runs programs. Every method has an async form, as `arun`.

A backend writes each operation once, as a coroutine with the argument `blocking`; this module makes both methods of it.
With `blocking` the coroutine blocks the thread and needs no event loop; without it, it never blocks the event loop.
Rules for every backend:

- Whatever the program does (it fails, dies, times out, uses up its memory), the run returns a `Result`.
- A failure of the sandbox itself raises `Broken`. After that, close the session and start another one.
- Every wait has a deadline: the timeout of the run plus extra seconds. Cancelling an async run kills all its processes.
- Paths are relative to the session's working folder. A path that leaves it or goes through a link raises `OSError`.
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
    """A program with all arguments of its run; `files` is used only for a run without a session."""

    program: Program
    timeout: float | None
    stdin: bytes
    show_last: bool
    limits: Limits
    files: Files | None = None


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that was called with `blocking=True` to its end, without an event loop, and return its result."""
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
    """The session of one episode: it keeps variables and files from run to run. Threads that share it need a lock."""

    limits: Limits

    def run(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        """Run Python in the session's process, or a command in a new process. `show_last` sets `Result.value`."""
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
        """Return the content of a regular file; raise `OSError` if it has more than `Limits.file_bytes` bytes."""
        return run_blocking(self._get(path, True))

    async def aget(self, path: str) -> bytes:
        return await self._get(path, False)

    def listdir(self, path: str = ".") -> list[str]:
        """Return the names in a folder, sorted; names of folders end with a slash."""
        return run_blocking(self._listdir(path, True))

    async def alistdir(self, path: str = ".") -> list[str]:
        return await self._listdir(path, False)

    def reset(self) -> None:
        """End all processes, and delete all variables and files."""
        run_blocking(self._reset(True))

    async def areset(self) -> None:
        await self._reset(False)

    def fork(self) -> "Session":
        """Return a new session with the same variables and a copy of the files.

        Raise UsageError if `Capabilities.forks` is False.
        """
        return run_blocking(self._fork(True))

    async def afork(self) -> "Session":
        return await self._fork(False)

    def close(self) -> None:
        """End every process and delete every file. It may be called twice, from any thread, and during a run."""
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
    """An open backend with its limits. Many threads and event loops may use it at once."""

    limits: Limits
    has_sessions: ClassVar[bool] = True
    """False if `start` is refused, and programs run one by one."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the guards that this sandbox enforces; they were tested once, when it opened."""

    def start(self, *, files: Files | None = None, limits: Limits | None = None) -> Session:
        """Start a session with these files in its working folder. `limits` may only lower the sandbox's limits."""
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

        With `show_last` the repr of the program's last expression is printed to stdout, as at the interactive prompt;
        `Result.value` is always None.
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
