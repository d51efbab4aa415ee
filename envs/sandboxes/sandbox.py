"""The two nouns: a Sandbox starts Sessions, a Session runs programs. Each method has an async twin, named with an `a`.

A backend writes the async half or the sync half, whichever is native to it, and the other by its own means: a sync call
must not need a running loop, and an async one must not block it. Rules that hold for every backend:

- What the program does (fails, dies, times out, eats its memory, floods, closes everything) is a `Result`.
- What the sandbox does wrong raises `Broken`. After it the session may be closed and another one started.
- Every wait has a deadline: a run's time plus a grace of the backend's. Cancelling an async run kills its whole tree.
- Paths are relative to the session's working folder; no link is followed and nothing outside is reached (`OSError`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Result

Program = str | Sequence[str]
"""Python source, or the words of a command (only where the backend has commands)."""


class Session(ABC):
    """One episode's place: variables and files stay from run to run. Not shared between threads without a lock."""

    @abstractmethod
    def run(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        """Run Python in the session's process, or a command beside it. `show_last` fills `Result.value`."""

    @abstractmethod
    async def arun(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result: ...

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a file; folders on the way are made."""

    @abstractmethod
    async def aput(self, path: str, data: bytes) -> None: ...

    @abstractmethod
    def get(self, path: str) -> bytes:
        """Read a regular file, at most `Limits.file_bytes` of it."""

    @abstractmethod
    async def aget(self, path: str) -> bytes: ...

    @abstractmethod
    def listdir(self, path: str = ".") -> list[str]:
        """Names in a folder, sorted; a folder's end with a slash."""

    @abstractmethod
    async def alistdir(self, path: str = ".") -> list[str]: ...

    @abstractmethod
    def reset(self) -> None:
        """Forget variables, processes and files."""

    @abstractmethod
    async def areset(self) -> None: ...

    @abstractmethod
    def fork(self) -> "Session":
        """A second session that has the same variables and a copy of the files. UsageError where `forks` is False."""

    @abstractmethod
    async def afork(self) -> "Session": ...

    @abstractmethod
    def close(self) -> None:
        """End every process and drop every file. May come twice, from any thread, and during a run, which it ends."""

    async def aclose(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class OneShot:
    """What `run_once` was asked, with its own limits made part of it."""

    program: Program
    files: Mapping[str, bytes] | None
    timeout: float | None
    stdin: bytes
    show_last: bool
    limits: Limits


class Sandbox(ABC):
    """A backend, opened with its limits. Safe to use from many threads and loops at once."""

    limits: Limits
    has_sessions: ClassVar[bool] = True
    """False where `start` is refused, and programs run one by one."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What is enforced here; found once, when the sandbox opened."""

    @abstractmethod
    def start(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session:
        """A new session with these files in its working folder. `limits` may only be tighter than the sandbox's."""

    @abstractmethod
    async def astart(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session: ...

    def run_once(
        self,
        program: Program,
        *,
        files: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
        stdin: bytes = b"",
        show_last: bool = False,
        limits: Limits | None = None,
    ) -> Result:
        """Run one program in a fresh place that is gone when this returns.

        With `show_last` the repr of its last expression is printed, as at the interactive prompt: a place that is gone
        has nobody to tell a value, so `Result.value` stays None.
        """
        return self._once(OneShot(program, files, timeout, stdin, show_last, self.limits.narrowed(limits)))

    async def arun_once(
        self,
        program: Program,
        *,
        files: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
        stdin: bytes = b"",
        show_last: bool = False,
        limits: Limits | None = None,
    ) -> Result:
        return await self._aonce(OneShot(program, files, timeout, stdin, show_last, self.limits.narrowed(limits)))

    @abstractmethod
    def _once(self, asked: OneShot) -> Result:
        """`run_once` as a backend does it."""

    @abstractmethod
    async def _aonce(self, asked: OneShot) -> Result: ...

    @abstractmethod
    def close(self) -> None:
        """End every session and every process of the backend. May come twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
