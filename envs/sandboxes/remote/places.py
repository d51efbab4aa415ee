"""The server's half without HTTP: sessions by their names, and what becomes of those who never come back.

- A request names itself. Sent again, it gets the answer of the first one and is not executed again.
- When nobody listens for a request any more (the connection was lost, the client killed), it may be sent again for
  `RETURN_SECONDS`; then what it does is cancelled and its session ended. A session that nobody touches for
  `idle_seconds` is ended too.

Left out: what a backend does with a program, how many may run at once (`turnstile`), and the token (`server`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.turnstile import Full, ServiceLimits, Turnstile
from palaestra.envs.sandboxes.remote.wire import (
    identity_of,
    names_answer,
    read_limits,
    read_run,
    read_start,
    result_answer,
    seconds_of,
    text_of,
)
from palaestra.envs.sandboxes.sandbox import Sandbox, Session
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.sandboxes")

Answer = tuple[dict[str, Any], bytes]
RETURN_SECONDS = 2.0
"""In which a client whose connection was lost may send its request again."""
KEPT_SECONDS = 60.0
"""How long an answer is kept for a client that may ask again."""
KEPT_ANSWERS = 4096
KEPT_BYTES = 256 * 2**20
"""Of all kept answers together; the oldest are dropped first."""
_READS = ("get", "listdir")
_STEP_SECONDS = 60.0
"""Deadline of all that is no run."""
_RUN_GRACE = 15.0
_LOOK = 1.0


class Gone(Broken):
    """The session has ended, or there never was one of that name."""


@dataclass(eq=False, slots=True)
class _Place:
    """A session, or the room that is kept for one."""

    session: Session | None = None
    limits: Limits | None = None
    """The session's."""
    fleeting: bool = False
    """One run's: nothing but a name to end it by."""
    touched: float = field(default_factory=time.monotonic)
    busy: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: list[str] = field(default_factory=list)
    """The last requests that were executed here."""
    work: "asyncio.Task[Answer] | None" = None


@dataclass(eq=False, slots=True)
class _Work:
    """A request that is being executed, or was."""

    task: "asyncio.Task[Answer]"
    place: str
    listeners: int = 0
    since: float = field(default_factory=time.monotonic)
    farewell: asyncio.TimerHandle | None = None

    def size(self) -> int:
        """Bytes of the answer that is kept."""
        answered = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return len(self.task.result()[1]) if answered else 0


class Places:
    """All sessions of one server. Everything happens on one event loop."""

    def __init__(self, sandbox: Sandbox, service: ServiceLimits) -> None:
        self.sandbox, self.service = sandbox, service
        self.limits = replace(sandbox.limits, seconds=min(sandbox.limits.seconds, service.most_seconds))
        """The widest that a client may ask for."""
        self._places: dict[str, _Place] = {}
        self._works: dict[str, _Work] = {}
        self._kept_bytes = 0
        self._turnstile = Turnstile(service)
        self._sweeper: asyncio.Task[None] | None = None
        self._operations: Mapping[str, Callable[[str, Mapping[str, Any], bytes], Coroutine[Any, Any, Answer]]] = {
            "start": self._start,
            "once": self._once,
            "run": self._run,
            "put": self._put,
            "get": self._get,
            "listdir": self._listdir,
            "reset": self._reset,
            "fork": self._fork,
            "close": self._close,
        }

    def figures(self) -> dict[str, int]:
        """How full it is."""
        sessions = {"sessions": self._sessions(), "most_sessions": self.service.most_sessions}
        return sessions | self._turnstile.figures()

    async def answer(self, operation: str, header: Mapping[str, Any], body: bytes) -> Answer:
        """Execute a request, or find the answer of the same one. Cancelled when the one who asked has gone."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        request, name = identity_of(header, "request"), identity_of(header, "session")
        work = self._works.get(request)
        if work is None:
            place = self._places.get(name)
            if place is not None and request in place.done and operation not in _READS:
                raise Broken("this request was executed before, and its answer is not kept any more")
            work = _Work(asyncio.create_task(self._operations[operation](name, header, body)), name)
            self._works[request] = work
            work.task.add_done_callback(lambda task: self._finished(request, task, operation not in _READS))
        elif work.place != name:
            raise UsageError("another session's request has this name")
        work.listeners += 1
        if work.farewell is not None:
            work.farewell.cancel()
            work.farewell = None
        try:
            return await asyncio.shield(work.task)
        except asyncio.CancelledError:
            if work.task.cancelled():
                raise Gone("the session was ended during the request") from None
            raise
        finally:
            work.listeners -= 1
            if not work.listeners and not work.task.done():
                loop = asyncio.get_running_loop()
                work.farewell = loop.call_later(RETURN_SECONDS, lambda: self._leave(name, work))

    async def close(self) -> None:
        """End every session and every run."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for work in list(self._works.values()):
            work.task.cancel()
        await asyncio.gather(*(self._end(name) for name in list(self._places)), return_exceptions=True)
        await asyncio.gather(*(work.task for work in self._works.values()), return_exceptions=True)

    # Operations.

    async def _start(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        files, limits = read_start(header, body), self._limits(header)
        async with self._room(name) as place, asyncio.timeout(_STEP_SECONDS):
            place.limits = limits
            place.session = await self.sandbox.astart(files=files, limits=limits)
        return {}, b""

    async def _once(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        (given, files), limits = read_run(header, body), self._limits(header)
        seconds = self._seconds(given, limits)
        if name in self._places:
            raise UsageError("there is a session of this name")
        place = self._places[name] = _Place(fleeting=True, busy=1, work=asyncio.current_task())
        try:
            async with self._turnstile.passing(seconds_of(header, "patience")), asyncio.timeout(seconds + _RUN_GRACE):
                return result_answer(await self.sandbox.arun_once(**given, files=files, limits=limits))
        finally:
            if self._places.get(name) is place:
                del self._places[name]

    async def _run(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        given, _ = read_run(header, body)
        place = self._places.get(name)
        seconds = self._seconds(given, (place and place.limits) or self.limits)
        async with (
            self._visit(name, header) as session,
            self._turnstile.passing(seconds_of(header, "patience")),
            asyncio.timeout(seconds + _RUN_GRACE),
        ):
            return result_answer(await session.arun(**given))

    async def _put(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        async with self._visit(name, header) as session, asyncio.timeout(_STEP_SECONDS):
            await session.aput(text_of(header, "path"), body)
        return {}, b""

    async def _get(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        async with self._visit(name, header) as session, asyncio.timeout(_STEP_SECONDS):
            return {}, await session.aget(text_of(header, "path"))

    async def _listdir(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        async with self._visit(name, header) as session, asyncio.timeout(_STEP_SECONDS):
            return {}, names_answer(await session.alistdir(text_of(header, "path")))

    async def _reset(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        async with self._visit(name, header) as session, asyncio.timeout(_STEP_SECONDS):
            await session.areset()
        return {}, b""

    async def _fork(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        fork = identity_of(header, "fork")
        async with self._visit(name, header) as session, self._room(fork) as place, asyncio.timeout(_STEP_SECONDS):
            place.limits = self._places[name].limits
            place.session = await session.afork()
        return {}, b""

    async def _close(self, name: str, header: Mapping[str, Any], body: bytes) -> Answer:
        await self._end(name)
        return {}, b""

    # Inside.

    @asynccontextmanager
    async def _room(self, name: str) -> AsyncIterator[_Place]:
        """Room for one more session, kept only if it comes to be."""
        if name in self._places:
            raise UsageError("there is a session of this name")
        if self._sessions() >= self.service.most_sessions:
            raise Full
        place = self._places[name] = _Place(busy=1, work=asyncio.current_task())
        try:
            yield place
        finally:
            place.busy, place.work, place.touched = 0, None, time.monotonic()
            if self._places.get(name) is not place:  # It was ended while it began.
                if place.session is not None:
                    await place.session.aclose()
            elif place.session is None:
                del self._places[name]

    @asynccontextmanager
    async def _visit(self, name: str, header: Mapping[str, Any]) -> AsyncIterator[Session]:
        """A session, alone."""
        place = self._places.get(name)
        if place is None:
            raise Gone(
                "there is no such session here: it was closed, nobody had touched it for "
                f"{self.service.idle_seconds:g} s, or the server was started anew"
            )
        place.busy += 1
        try:
            async with place.turn:
                if place.session is None:
                    raise Gone("the session was ended meanwhile")
                place.work = asyncio.current_task()
                place.done = [*place.done[-7:], text_of(header, "request")]
                try:
                    yield place.session
                finally:
                    place.work = None
        finally:
            place.busy -= 1
            place.touched = time.monotonic()

    def _sessions(self) -> int:
        return sum(not place.fleeting for place in self._places.values())

    def _limits(self, header: Mapping[str, Any]) -> Limits:
        limits = read_limits(header) or Limits().within(self.limits)
        for one in fields(Limits):
            asked, most = getattr(limits, one.name), getattr(self.limits, one.name)
            if asked > most:
                raise UsageError(f"limit {one.name} is {asked}; this server allows at most {most}")
        return limits

    def _seconds(self, given: Mapping[str, Any], limits: Limits) -> float:
        seconds: float = given["timeout"] or limits.seconds
        if seconds > self.service.most_seconds:
            raise UsageError(f"timeout is {seconds:g} s; this server allows at most {self.service.most_seconds:g}")
        return seconds

    def _finished(self, request: str, task: "asyncio.Task[Answer]", keep: bool) -> None:
        """An answer is kept, but not that there was no room, and not what can be read again."""
        if task.cancelled() or isinstance(task.exception(), Full) or not keep:
            self._works.pop(request, None)
        elif request in self._works:
            work = self._works[request]
            work.since = time.monotonic()
            self._kept_bytes += work.size()
            if self._kept_bytes > KEPT_BYTES:
                self._drop_old_answers()

    def _leave(self, name: str, work: _Work) -> None:
        """Nobody has come back for a request."""
        if not work.listeners and not work.task.done():
            log.info("a client has gone during a request; its session is ended")
            work.task.cancel()
            self._ending = asyncio.create_task(self._end(name))

    async def _end(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is None:
            return
        session, place.session = place.session, None
        if place.work is not None and place.work is not asyncio.current_task():
            place.work.cancel()
        if session is not None:
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await session.aclose()
            except (Broken, OSError, TimeoutError) as error:
                log.warning("a session could not be closed: %s", error)

    async def _sweep(self) -> None:
        """End what nobody touches; forget old answers."""
        while True:
            await asyncio.sleep(min(_LOOK, self.service.idle_seconds / 2))
            now = time.monotonic()
            for name, place in list(self._places.items()):
                if not place.busy and now - place.touched > self.service.idle_seconds:
                    log.info("a session was not touched for %g s; it is ended", self.service.idle_seconds)
                    await self._end(name)
            self._drop_old_answers()

    def _drop_old_answers(self) -> None:
        """Forget answers that are old, and the oldest where there are too many or they are too large together."""
        now, kept, size = time.monotonic(), 0, 0
        finished = [(name, work) for name, work in self._works.items() if work.task.done()]
        for name, work in reversed(finished):
            if kept >= KEPT_ANSWERS or size + work.size() > KEPT_BYTES or now - work.since > KEPT_SECONDS:
                del self._works[name]  # Whoever listens still gets it: the task has it.
            else:
                kept, size = kept + 1, size + work.size()
        self._kept_bytes = size
