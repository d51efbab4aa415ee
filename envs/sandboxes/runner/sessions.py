"""What a connection can ask for: start, run, once, files, fork, reset, close. Generators that yield deadlines.

What is not here: how a run goes (`runs`), descriptors and messages (`cells`), the loop (`supervisor`).
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from . import files, preload
from .cells import Cell, CellMessage, Host, Process, Waiter
from .cgroups import Cgroup
from .measures import Meters, refusal
from .orders import FORK, FORKED, ConsoleCommand
from .runs import DEATH_SECONDS, Asked, Failure, ProgramRun, RunReply, RunSteps, until
from .watching import tree

T = TypeVar("T")
START_SECONDS = 30.0
"""For a cell to be there; the first one waits for its zygote to be warm."""
FORK_SECONDS = 10.0
_NOTICE = "This session is to be a copy of one whose program keeps it from being copied"


class RunnerSession:
    """One connection's place and what runs in it."""

    def __init__(self, host: Host, waiter: Waiter, limits: CellMessage, wanted: str) -> None:
        self._host, self._waiter = host, waiter
        self.limits, self._wanted = limits, wanted
        self.place: Cell | None = None
        self._area = ""
        """Below the scratch folder: what a branch may write. Its branches lie in it, since walls only get closer."""
        self._root = -1
        """The working folder, opened before any program could put something else in its place."""
        self._group: Cgroup | None = None
        self._console: Process | None = None
        self._runs = 0
        self._meters = Meters(float(limits["cpu_seconds"]))
        self._notice = ""
        """Message that answers the next run, which is not executed."""
        self.busy = False

    # --- a session that stays

    def start(self, given: list[tuple[str, bytes]]) -> RunSteps:
        self._take_group()
        name = self._wanted if self._wanted != "auto" else "scientific"
        yield from self._enter(name, "stay", None)
        self._put_all(given)

    def run(self, wanted: Asked) -> Generator[float, None, RunReply]:
        place = self._living()
        if self._notice:
            notice, self._notice = self._notice.encode(), ""
            return refusal(len(notice)), (b"", notice, b"")
        self.busy = True
        try:
            if wanted.command:
                return (yield from self._command(place, wanted))
            lost = self._console is not None and self._console.gone  # a thread of an earlier run may have ended it
            if lost:
                self._lose_console()
            if self._console is None:
                self._console = yield from self._spawned()
            console = self._console
            self._runs += 1
            run = self._ready(place, console)
            reply = yield from run.go(wanted, self._runs, lost)
            if console.died is not None:
                self._lose_console()
            elif not run.leaves_nothing:
                self._host.look_after(self)
            return reply
        finally:
            self.busy = False

    def computes(self) -> bool:
        """Whether something of it may go on after a run; what has computed more than it may is ended."""
        place = self.place
        if place is None or place.dead or place.broken:
            return False
        if self.busy:
            return True
        if self._meters.spent(place):
            if self._console is not None:
                self._console.kill()
            place.sweep(self._group)
        return len(tree(place.first.pid)) > 1 + place.seats if self._group is None else not self._group.alone()

    def _command(self, place: Cell, wanted: Asked) -> Generator[float, None, RunReply]:
        process = yield from self._spawned()
        try:
            return (yield from self._ready(place, process).go(wanted))
        finally:
            if process.died is None:
                process.kill()
            process.close()
            self._host.look_after(self)

    def _lose_console(self) -> None:
        """It is dead: what it left running goes as well."""
        console, self._console = self._console, None
        if console is not None:
            console.close()
        if self._host.namespaces and self.place is not None:
            self.place.sweep(self._group)

    def fork(self, original: "RunnerSession") -> RunSteps:
        """Become a second session with the variables and a copy of the files of another one.

        Where that one's program keeps it from being copied, this session begins anew, and its first run says so.
        """
        place = original._living()
        if not self._host.namespaces:
            raise Failure("usage", "this backend cannot fork a session; see Capabilities.forks")
        if original.busy:
            raise Failure("usage", "a session cannot be forked while it runs")
        self._notice = original._notice
        self._take_group()
        try:
            yield from self._copy(original, place)
        except (OSError, Failure) as error:
            if isinstance(error, Failure) and error.kind != "os":
                raise
            self.leave()
            self._area = ""
            yield from self.start([])
            why = getattr(error, "strerror", None) or error
            self._notice = f"{_NOTICE}: {why}. It begins anew, without variables and files, and nothing was run.\n"

    def _copy(self, original: "RunnerSession", place: Cell) -> RunSteps:
        self.place = place
        place.seats += 1
        self._area, place.branches = f"{original._area}/{place.branches}".lstrip("/"), place.branches + 1
        self._root = files.branch(place.folder, self._area, original._root)
        if original._console is not None and original._console.gone:
            original._lose_console()
        if original._console is None:
            original._console = yield from original._spawned(self._waiter)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._console = branch = Process(self._host, self._waiter, near)
        branch.ready = True  # nothing that this process says is ours
        branch.awaits(FORKED)
        branch.listen()
        original._console.tell(ConsoleCommand(FORK, self._area.encode()).packed(), far.fileno())
        far.close()
        deadline = time.monotonic() + FORK_SECONDS
        yield from until(lambda: branch.reply or branch.hung_up or original._gone(), deadline)
        if place.broken:
            raise Failure("broken", place.broken)
        word = branch.reply
        if not word[1:12].isdigit():
            raise Failure("os", "its files do not fit twice, or its process is busy, dead or was changed")
        place.adopt(branch, int(word[1:12]))
        yield from until(lambda: branch.pid or branch.died or place.broken, deadline)
        if branch.died is not None or not branch.pid:
            raise Failure("os", "it did not live through its fork")
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                self._group.add(branch.pid)

    def leave(self) -> None:
        """End every process; the place ends with its last session."""
        console, self._console = self._console, None
        place, self.place = self.place, None
        if place is not None:
            place.seats -= 1
            if place.seats == 0:
                place.kill()
            elif console is not None:
                console.kill()
                if self._group is not None:
                    self._group.kill()
        if console is not None:
            console.close()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1
        self._host.release_cgroup(self._group)
        self._group = None

    def close(self) -> RunSteps:
        """Leave, and wait until nothing is left."""
        place = self.place
        self.leave()
        if place is not None and place.seats == 0:
            yield from until(lambda: place.dead, time.monotonic() + DEATH_SECONDS)

    def reset(self) -> RunSteps:
        yield from self.close()
        self._area, self._runs, self._notice = "", 0, ""
        yield from self.start([])

    # --- one program

    def once(self, given: list[tuple[str, bytes]], wanted: Asked) -> Generator[float, None, RunReply]:
        name = self._wanted
        if name == "auto":
            name = "bare" if wanted.command else preload.choose(wanted.program)
        self._take_group()
        try:
            place = yield from self._enter(name, "once", self._group)
            self._put_all(given)
            return (yield from self._ready(place, place.first).go(wanted))
        finally:
            self.leave()

    # --- files

    def put(self, path: str, data: bytes) -> None:
        self._asked(files.put, path, data)

    def get(self, path: str) -> bytes:
        return self._asked(files.get, path, int(self.limits["file_bytes"]))

    def listdir(self, path: str) -> list[str]:
        return self._asked(files.listdir, path, int(self.limits["scratch_files"]))

    def _put_all(self, given: list[tuple[str, bytes]]) -> None:
        for path, data in given:
            try:
                self.put(path, data)
            except Failure as error:  # Whoever asked gave many.
                raise Failure(error.kind, f"{error}: {path}", error.number) from None

    def _asked(self, work: Callable[[int, str, Any], T], path: str, given: Any) -> T:
        """Something with a file. What the file system says is the caller's to hear, not a fault of ours."""
        self._living()
        try:
            return work(self._root, path, given)
        except OSError as error:
            raise Failure("os", error.strerror or str(error), error.errno or 0) from None

    # --- below

    def _living(self) -> Cell:
        if self.place is None:
            raise Failure("usage", "no session was started here")
        if self.place.broken or self.place.dead:
            raise Failure("broken", self.place.broken or "the session's first process is gone")
        return self.place

    def _take_group(self) -> None:
        self._group = self._host.group(self.limits)
        self._meters.count_in(self._group)

    def _gone(self) -> bool:
        console, place = self._console, self.place
        return place is None or place.dead or bool(place.broken) or console is None or console.gone

    def _enter(self, name: str, kind: str, group: Cgroup | None) -> Generator[float, None, Cell]:
        """A new place from a zygote that is warm."""
        deadline = time.monotonic() + START_SECONDS
        zygote = self._host.zygote(name)
        yield from until(lambda: zygote.ready or zygote.failed, deadline)
        if not zygote.ready or zygote.failed:
            raise Failure("broken", f"the {name} zygote did not start: {zygote.failed or 'it took too long'}")
        place = self.place = self._host.place(zygote, kind, self.limits, self._waiter, group)
        yield from until(lambda: place.broken or place.dead or (place.folder >= 0 and place.first.pidfd >= 0), deadline)
        if place.folder < 0 or place.broken or place.dead:
            raise Failure("broken", place.broken or "a session's cell did not come up")
        self._root = files.child(place.folder, "0")
        return place

    def _spawned(self, waiter: Waiter | None = None) -> Generator[float, None, Process]:
        place = self._living()
        process = place.spawn(waiter or self._waiter, self._area, self._group)
        deadline = time.monotonic() + START_SECONDS
        yield from until(lambda: process.pidfd >= 0 or process.died or process.refused or place.broken, deadline)
        if place.broken or process.refused or process.pidfd < 0:
            raise Failure("broken", place.broken or process.refused or "a console could not be forked")
        return process

    def _ready(self, place: Cell, process: Process) -> ProgramRun:
        return ProgramRun(self._host, place, process, self._group, self._meters)
