"""The two nouns: a Sandbox starts Sessions, a Session runs programs. Each method has an async twin, named with an `a`.

The twins stand here and nowhere else: a backend writes each operation once, as a coroutine that is told whether to
block. If `blocking`, it blocks the thread and never waits for a loop, so a plain call needs none; if not, it never
blocks the loop. Rules that hold for every backend:

- What the program does (fails, dies, times out, eats its memory, floods, closes everything) is a `Result`.
- What the sandbox does wrong raises `Broken`. After it the session may be closed and another one started.
- Every wait has a deadline: a run's time plus a grace of the backend's. Cancelling an async run kills its whole tree.
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
"""Python source, or the words of a command (only where the backend has commands)."""
Files = Mapping[str, bytes]


class Execution(NamedTuple):
    """A program with all that is given to it. Without a session it brings its files."""

    program: Program
    timeout: float | None
    stdin: bytes
    show_last: bool
    limits: Limits
    files: Files | None = None


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of an operation that was told to block: it ends without ever waiting for a loop."""
    try:
        work.send(None)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    raise AssertionError("an operation that was told to block has waited for a loop")


class _Closing:
    """What a `with` block closes."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Session(_Closing, ABC):
    """One episode's place: variables and files stay from run to run. Not shared between threads without a lock."""

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
        """Write a file; folders on the way are made."""
        run_blocking(self._put(path, data, True))

    async def aput(self, path: str, data: bytes) -> None:
        await self._put(path, data, False)

    def get(self, path: str) -> bytes:
        """Read a regular file, at most `Limits.file_bytes` of it."""
        return run_blocking(self._get(path, True))

    async def aget(self, path: str) -> bytes:
        return await self._get(path, False)

    def listdir(self, path: str = ".") -> list[str]:
        """Names in a folder, sorted; a folder's end with a slash."""
        return run_blocking(self._listdir(path, True))

    async def alistdir(self, path: str = ".") -> list[str]:
        return await self._listdir(path, False)

    def reset(self) -> None:
        """Forget variables, processes and files."""
        run_blocking(self._reset(True))

    async def areset(self) -> None:
        await self._reset(False)

    def fork(self) -> "Session":
        """A second session that has the same variables and a copy of the files. UsageError where `forks` is False."""
        return run_blocking(self._fork(True))

    async def afork(self) -> "Session":
        return await self._fork(False)

    def close(self) -> None:
        """End every process and drop every file. May come twice, from any thread, and during a run, which it ends."""
        run_blocking(self._close(True))

    async def aclose(self) -> None:
        await self._close(False)

    @abstractmethod
    async def _run(self, asked: Execution, blocking: bool) -> Result: ...
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
    """False where `start` is refused, and programs run one by one."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What is enforced here; found once, when the sandbox opened."""

    def start(self, *, files: Files | None = None, limits: Limits | None = None) -> Session:
        """A new session with these files in its working folder. `limits` may only be tighter than the sandbox's."""
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
        """Run one program in a fresh place that is gone when this returns.

        With `show_last` the repr of its last expression is printed, as at the interactive prompt: a place that is gone
        has nobody to tell a value, so `Result.value` stays None.
        """
        asked = Execution(program, timeout, stdin, show_last, self.limits.narrowed(limits), files)
        return run_blocking(self._once(asked, True))

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
        asked = Execution(program, timeout, stdin, show_last, self.limits.narrowed(limits), files)
        return await self._once(asked, False)

    @abstractmethod
    async def _start(self, files: Files | None, limits: Limits, blocking: bool) -> Session: ...
    @abstractmethod
    async def _once(self, asked: Execution, blocking: bool) -> Result: ...

    @abstractmethod
    def close(self) -> None:
        """End every session and every process of the backend. May come twice."""
