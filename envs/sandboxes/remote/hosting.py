"""The sandbox server without HTTP: it keeps sessions by name, and ends those whose clients do not come back.

- Each request has a name. If it is sent again, it gets the answer of the first one and is not executed again.
- If no client waits for a request any more (the connection was lost, the client killed), the request may be sent again
  for `RETURN_SECONDS`; then its work is cancelled and its session ended. A session without a request for `idle_seconds`
  is ended too.

`admission` limits how many programs run at once, and `server` checks the token.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.envs.sandboxes.remote.admission import Admission, Full, ServiceLimits
from palaestra.envs.sandboxes.remote.messages import DONE, pack_result, read_files, read_run, text_of
from palaestra.envs.sandboxes.runner.wire import RUN, FrameHead, Header, pack
from palaestra.envs.sandboxes.sandbox import Sandbox, Session
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.sandboxes")

RETURN_SECONDS = 2.0
"""Seconds in which a client whose connection was lost may send its request again."""
KEPT_SECONDS = 60.0
"""Seconds for which an answer is kept for a client that may ask again."""
KEPT_ANSWERS = 4096
KEPT_BYTES = 256 * 2**20
"""Total size of all kept answers in bytes; the oldest are dropped first."""
_READS = ("get", "listdir")
_STEP_SECONDS = 60.0
"""Timeout of every operation that is not a run, in seconds."""
_RUN_GRACE = 15.0
_LOOK = 1.0
_OPERATIONS = ("start", "fork", "once", "run", "put", "get", "listdir", "reset", "close")
_ENDED = "the session was ended during the request"


@dataclass(eq=False, slots=True)
class _Hosted:
    """A session of this server, or a place reserved for one."""

    session: Session | None = None
    alone: bool = False
    """True for a program without a session, of which only the name is used, to end it."""
    touched: float = field(default_factory=time.monotonic)
    busy: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: list[str] = field(default_factory=list)
    """Names of the last requests that were executed here."""
    work: "asyncio.Task[bytes] | None" = None


@dataclass(eq=False, slots=True)
class _RequestResult:
    """The task that works on a request, and holds the answer once it is done."""

    work: "asyncio.Task[bytes]"
    session: str
    listeners: int = 0
    since: float = field(default_factory=time.monotonic)
    giving_up: asyncio.TimerHandle | None = None

    def size(self) -> int:
        """Return the size of the kept answer in bytes; 0 if there is no answer."""
        answered = self.work.done() and not self.work.cancelled() and self.work.exception() is None
        return len(self.work.result()) if answered else 0


class Hosting:
    """All sessions of one server. Everything runs on one event loop."""

    def __init__(self, sandbox: Sandbox, service: ServiceLimits) -> None:
        self.sandbox, self.service = sandbox, service
        self.limits = replace(sandbox.limits, seconds=min(sandbox.limits.seconds, service.most_seconds))
        """The widest limits that a client may request."""
        self._hosted: dict[str, _Hosted] = {}
        self._answers: dict[str, _RequestResult] = {}
        self._kept_bytes = 0
        self._admission = Admission(service)
        self._sweeper: asyncio.Task[None] | None = None

    def figures(self) -> dict[str, int]:
        """Return the number of sessions and of running and waiting programs, each with its maximum."""
        counts = {"sessions": self._sessions(), "running": self._admission.running, "waiting": self._admission.waiting}
        figures: dict[str, int] = {}
        for name, count in counts.items():
            figures |= {name: count, f"most_{name}": getattr(self.service, f"most_{name}")}
        return figures

    async def answer(self, request: str, name: str, head: FrameHead, body: bytes, patience: float) -> bytes:
        """Execute a request and return its answer; a request whose name was used before gets the earlier answer."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        operation = "run" if isinstance(head, bytes) else text_of(head, "op")
        answer = self._answers.get(request)
        if answer is None:
            hosted = self._hosted.get(name)
            if hosted is not None and request in hosted.done and operation not in _READS:
                raise Broken("this request was executed before, and its answer is not kept any more")
            work = asyncio.create_task(self._execute(operation, request, name, head, body, patience))
            answer = self._answers[request] = _RequestResult(work, name)
            work.add_done_callback(lambda task: self._finished(request, task, operation not in _READS))
        elif answer.session != name:
            raise UsageError("another session's request has this name")
        answer.listeners += 1
        if answer.giving_up is not None:
            answer.giving_up.cancel()
            answer.giving_up = None
        try:
            return await asyncio.shield(answer.work)
        except asyncio.CancelledError:
            if answer.work.cancelled():
                raise Broken(_ENDED) from None
            raise
        finally:
            answer.listeners -= 1
            if not answer.listeners and not answer.work.done():
                loop = asyncio.get_running_loop()
                answer.giving_up = loop.call_later(RETURN_SECONDS, lambda: self._give_up(name, answer))

    async def close(self) -> None:
        """End every session and every run."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        work = [answer.work for answer in self._answers.values()]
        for task in work:
            task.cancel()
        await asyncio.gather(*map(self._end, list(self._hosted)), *work, return_exceptions=True)

    # Operations.

    async def _execute(
        self, operation: str, request: str, name: str, head: FrameHead, body: bytes, patience: float
    ) -> bytes:
        if isinstance(head, bytes):
            async with self._visit(name, request) as session:
                arguments = read_run(head, body)
                async with self._running(arguments, patience):
                    return pack_result(await session.arun(**arguments))
        if operation == "close":
            await self._end(name)
            return DONE
        if operation == "once":
            return await self._once(name, head, body, patience)
        if operation not in _OPERATIONS:
            raise UsageError(f"there is no operation {operation!r}; known: {', '.join(_OPERATIONS)}")
        async with asyncio.timeout(_STEP_SECONDS):
            if operation == "start":
                files, _ = read_files(head, body)
                limits = self.limits.narrowed(head.get("limits"))
                async with self._room(name) as hosted:
                    hosted.session = await self.sandbox.astart(files=files, limits=limits)
                return pack({"session": name})
            if operation == "fork":
                async with self._visit(text_of(head, "of"), request) as session, self._room(name) as hosted:
                    hosted.session = await session.afork()
                return pack({"session": name})
            async with self._visit(name, request) as session:
                return await _step(operation, session, head, body)

    async def _once(self, name: str, head: Header, body: bytes, patience: float) -> bytes:
        files, run_bytes = read_files(head, body)
        arguments = read_run(run_bytes[: RUN.size], run_bytes[RUN.size :])
        limits = self.limits.narrowed(head.get("limits"))
        async with self._room(name, alone=True), self._running(arguments, patience):
            return pack_result(await self.sandbox.arun_once(**arguments, files=files, limits=limits))

    # Inside.

    @asynccontextmanager
    async def _running(self, arguments: dict[str, Any], patience: float) -> AsyncIterator[None]:
        """Wait for a free run slot, then hold it for at most the timeout of the program."""
        seconds = arguments["timeout"]
        if seconds > self.service.most_seconds:
            raise UsageError(f"timeout is {seconds:g} s; this server allows at most {self.service.most_seconds:g}")
        async with self._admission.admitted(patience), asyncio.timeout(seconds + _RUN_GRACE):
            yield

    @asynccontextmanager
    async def _room(self, name: str, alone: bool = False) -> AsyncIterator[_Hosted]:
        """Reserve a place for a session, and free it if none is started.

        A program without a session (`alone`) always gets one.
        """
        if name in self._hosted:
            raise UsageError("there is a session of this name")
        if not alone and self._sessions() >= self.service.most_sessions:
            raise Full
        hosted = self._hosted[name] = _Hosted(alone=alone, busy=1, work=asyncio.current_task())
        try:
            yield hosted
        finally:
            hosted.busy, hosted.work, hosted.touched = 0, None, time.monotonic()
            if self._hosted.get(name) is not hosted:  # It was ended while it was being started.
                if hosted.session is not None:
                    await hosted.session.aclose()
            elif hosted.session is None:
                del self._hosted[name]

    @asynccontextmanager
    async def _visit(self, name: str, request: str) -> AsyncIterator[Session]:
        """Yield the session of this name; other requests to it wait until the block ends."""
        hosted = self._hosted.get(name)
        if hosted is None:
            raise Broken(
                "there is no such session here: it was closed, nobody had touched it for "
                f"{self.service.idle_seconds:g} s, or the server was started anew"
            )
        hosted.busy += 1
        try:
            async with hosted.turn:
                if hosted.session is None:
                    raise Broken(_ENDED)
                hosted.work = asyncio.current_task()
                hosted.done = [*hosted.done[-7:], request]
                try:
                    yield hosted.session
                finally:
                    hosted.work = None
        finally:
            hosted.busy -= 1
            hosted.touched = time.monotonic()

    def _sessions(self) -> int:
        return sum(not hosted.alone for hosted in self._hosted.values())

    def _finished(self, request: str, work: "asyncio.Task[bytes]", keep: bool) -> None:
        """Keep the answer of finished work if `keep` is True, unless the work was cancelled or the server was full."""
        if work.cancelled() or isinstance(work.exception(), Full) or not keep:
            self._answers.pop(request, None)
        elif request in self._answers:
            answer = self._answers[request]
            answer.since = time.monotonic()
            self._kept_bytes += answer.size()
            if self._kept_bytes > KEPT_BYTES:
                self._drop_old_answers()

    def _give_up(self, name: str, answer: _RequestResult) -> None:
        """Cancel a request whose client has not come back, and end its session."""
        if not answer.listeners and not answer.work.done():
            log.info("a client has gone during a request; its session is ended")
            answer.work.cancel()
            self._ending = asyncio.create_task(self._end(name))

    async def _end(self, name: str) -> None:
        hosted = self._hosted.pop(name, None)
        if hosted is None:
            return
        session, hosted.session = hosted.session, None
        if hosted.work is not None and hosted.work is not asyncio.current_task():
            hosted.work.cancel()
        if session is not None:
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await session.aclose()
            except (Broken, OSError, TimeoutError) as error:
                log.warning("a session could not be closed: %s", error)

    async def _sweep(self) -> None:
        """End sessions that are idle for too long, and drop old answers."""
        while True:
            await asyncio.sleep(min(_LOOK, self.service.idle_seconds / 2))
            now = time.monotonic()
            for name, hosted in list(self._hosted.items()):
                if not hosted.busy and now - hosted.touched > self.service.idle_seconds:
                    log.info("a session was not touched for %g s; it is ended", self.service.idle_seconds)
                    await self._end(name)
            self._drop_old_answers()

    def _drop_old_answers(self) -> None:
        """Drop answers that are too old, then the oldest ones while all are too many or too large together."""
        now, count, size = time.monotonic(), 0, 0
        finished = [(request, answer) for request, answer in self._answers.items() if answer.work.done()]
        for request, answer in reversed(finished):
            if count >= KEPT_ANSWERS or size + answer.size() > KEPT_BYTES or now - answer.since > KEPT_SECONDS:
                del self._answers[request]  # A waiting client still gets it from the task.
            else:
                count, size = count + 1, size + answer.size()
        self._kept_bytes = size


async def _step(operation: str, session: Session, head: Header, body: bytes) -> bytes:
    """Execute an operation of a session that is not a run."""
    if operation == "put":
        await session.aput(text_of(head, "path"), body)
    elif operation == "get":
        return pack({"ok": True}, await session.aget(text_of(head, "path")))
    elif operation == "listdir":
        return pack({"ok": True}, json.dumps(await session.alistdir(text_of(head, "path"))).encode())
    else:
        await session.areset()
    return DONE
