"""The requests of a connection: start, run, once, files, fork, reset, close. They are generators that yield deadlines.

`runs` executes a run, `cells` handles descriptors and messages, and `supervisor` is the loop.
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
from .runs import DEATH_SECONDS, Failure, ProgramRun, RunReply, RunRequest, RunSteps, until
from .watching import tree

T = TypeVar("T")
START_SECONDS = 30.0
"""Timeout for the start of a cell, in seconds; the first one waits until its zygote is warm."""
FORK_SECONDS = 10.0
_NOTICE = "This session is to be a copy of one whose program keeps it from being copied"


class RunnerSession:
    """The session of one connection: its cell and the processes in it."""

    def __init__(self, host: Host, waiter: Waiter, limits: CellMessage, zygote_name: str) -> None:
        self._host, self._waiter = host, waiter
        self.limits, self._zygote_name = limits, zygote_name
        self.cell: Cell | None = None
        self._area = ""
        """Folder below the scratch that a branch may write. Its branches lie in it: Landlock only takes away."""
        self._root = -1
        """The working folder, opened before any program could put something else there."""
        self._group: Cgroup | None = None
        self._console: Process | None = None
        self._runs = 0
        self._meters = Meters(float(limits["cpu_seconds"]))
        self._notice = ""
        """Message that answers the next run, which is not executed."""
        self.busy = False

    # --- a session that stays

    def start(self, contents: list[tuple[str, bytes]]) -> RunSteps:
        self._take_group()
        name = self._zygote_name if self._zygote_name != "auto" else "scientific"
        yield from self._enter(name, "stay", None)
        self._put_all(contents)

    def run(self, request: RunRequest) -> Generator[float, None, RunReply]:
        cell = self._living()
        if self._notice:
            notice, self._notice = self._notice.encode(), ""
            return refusal(len(notice)), (b"", notice, b"")
        self.busy = True
        try:
            if request.command:
                return (yield from self._command(cell, request))
            lost = self._console is not None and self._console.gone  # a thread of an earlier run may have ended it
            if lost:
                self._lose_console()
            if self._console is None:
                self._console = yield from self._spawned()
            console = self._console
            self._runs += 1
            run = self._ready(cell, console)
            reply = yield from run.go(request, self._runs, lost)
            if console.died is not None:
                self._lose_console()
            elif not run.leaves_nothing:
                self._host.watch_cpu(self)
            return reply
        finally:
            self.busy = False

    def computes(self) -> bool:
        """Return whether processes may still work between runs; end them if they have exceeded the CPU limit."""
        cell = self.cell
        if cell is None or cell.dead or cell.broken:
            return False
        if self.busy:
            return True
        if self._meters.over_cpu_limit(cell):
            if self._console is not None:
                self._console.kill()
            cell.sweep(self._group)
        return len(tree(cell.first.pid)) > 1 + cell.seats if self._group is None else not self._group.alone()

    def _command(self, cell: Cell, request: RunRequest) -> Generator[float, None, RunReply]:
        process = yield from self._spawned()
        try:
            return (yield from self._ready(cell, process).go(request))
        finally:
            if process.died is None:
                process.kill()
            process.close()
            self._host.watch_cpu(self)

    def _lose_console(self) -> None:
        """Close a dead console, and end the processes that it left."""
        console, self._console = self._console, None
        if console is not None:
            console.close_outputs()
            console.close()
        if self._host.namespaces and self.cell is not None:
            self.cell.sweep(self._group)

    def fork(self, original: "RunnerSession") -> RunSteps:
        """Become a copy of another session, with its variables and a copy of its files.

        If the program of `original` prevents the copy, this session starts empty, and its first run only returns a
        message that says so.
        """
        cell = original._living()
        if not self._host.namespaces:
            raise Failure("usage", "this backend cannot fork a session; see Capabilities.forks")
        if original.busy:
            raise Failure("usage", "a session cannot be forked while it runs")
        self._notice = original._notice
        self._take_group()
        try:
            yield from self._copy(original, cell)
        except (OSError, Failure) as error:
            if isinstance(error, Failure) and error.kind != "os":
                raise
            self.leave()
            self._area = ""
            yield from self.start([])
            why = getattr(error, "strerror", None) or error
            self._notice = f"{_NOTICE}: {why}. It begins anew, without variables and files, and nothing was run.\n"

    def _copy(self, original: "RunnerSession", cell: Cell) -> RunSteps:
        self.cell = cell
        cell.seats += 1
        self._area, cell.branches = f"{original._area}/{cell.branches}".lstrip("/"), cell.branches + 1
        self._root = files.branch(cell.folder, self._area, original._root)
        if original._console is not None and original._console.gone:
            original._lose_console()
        if original._console is None:
            original._console = yield from original._spawned(self._waiter)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._console = branch = Process(self._host, self._waiter, near)
        branch.ready = True  # its messages are not trusted: it runs the agent's code
        branch.awaits(FORKED)
        branch.listen()
        original._console.tell(ConsoleCommand(FORK, self._area.encode()).packed(), far.fileno())
        far.close()
        deadline = time.monotonic() + FORK_SECONDS
        yield from until(lambda: branch.reply or branch.hung_up or original._gone(), deadline)
        if cell.broken:
            raise Failure("broken", cell.broken)
        word = branch.reply
        if not word[1:12].isdigit():
            raise Failure("os", "its files do not fit twice, or its process is busy, dead or was changed")
        cell.adopt(branch, int(word[1:12]))
        yield from until(lambda: branch.pid or branch.died or cell.broken, deadline)
        if branch.died is not None or not branch.pid:
            raise Failure("os", "it did not live through its fork")
        if self._group is not None:
            with contextlib.suppress(ProcessLookupError):
                self._group.add(branch.pid)

    def leave(self) -> None:
        """End every process of this session; the cell ends when its last session leaves it."""
        console, self._console = self._console, None
        cell, self.cell = self.cell, None
        all_dead = cell is not None and cell.dead and not cell.broken
        if cell is not None:
            cell.seats -= 1
            if cell.seats == 0:
                cell.kill()
            elif console is not None:
                console.kill()
                if self._group is not None:
                    self._group.kill()
        if console is not None:
            console.close_outputs()
            console.close()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1
        if self._group is not None:
            self._host.release_cgroup(self._group, all_dead)
            self._group = None

    def close(self) -> RunSteps:
        """Leave, and wait until the cell has ended if no session is left in it."""
        cell = self.cell
        self.leave()
        if cell is not None and cell.seats == 0:
            yield from until(lambda: cell.dead, time.monotonic() + DEATH_SECONDS)

    def reset(self) -> RunSteps:
        yield from self.close()
        self._area, self._runs, self._notice = "", 0, ""
        yield from self.start([])

    # --- one program

    def once(self, contents: list[tuple[str, bytes]], request: RunRequest) -> Generator[float, None, RunReply]:
        name = self._zygote_name
        if name == "auto":
            name = "bare" if request.command else preload.choose(request.program)
        self._take_group()
        try:
            cell = yield from self._enter(name, "once", self._group)
            self._put_all(contents)
            return (yield from self._ready(cell, cell.first).go(request))
        finally:
            self.leave()

    # --- files

    def put(self, path: str, data: bytes) -> None:
        self._file_operation(files.put, path, data)

    def get(self, path: str) -> bytes:
        return self._file_operation(files.get, path, int(self.limits["file_bytes"]))

    def listdir(self, path: str) -> list[str]:
        return self._file_operation(files.listdir, path, int(self.limits["scratch_files"]))

    def _put_all(self, contents: list[tuple[str, bytes]]) -> None:
        for path, data in contents:
            try:
                self.put(path, data)
            except Failure as error:  # Whoever asked gave many.
                raise Failure(error.kind, f"{error}: {path}", error.number) from None

    def _file_operation(self, work: Callable[[int, str, Any], T], path: str, argument: Any) -> T:
        """Do something with a file.

        An OSError becomes a `Failure` of the kind "os", because the caller is responsible for it.
        """
        self._living()
        try:
            return work(self._root, path, argument)
        except OSError as error:
            raise Failure("os", error.strerror or str(error), error.errno or 0) from None

    # --- below

    def _living(self) -> Cell:
        if self.cell is None:
            raise Failure("usage", "no session was started here")
        if self.cell.broken or self.cell.dead:
            raise Failure("broken", self.cell.broken or "the session's first process is gone")
        return self.cell

    def _take_group(self) -> None:
        self._group = self._host.group(self.limits)
        self._meters.count_in(self._group)

    def _gone(self) -> bool:
        console, cell = self._console, self.cell
        return cell is None or cell.dead or bool(cell.broken) or console is None or console.gone

    def _enter(self, name: str, kind: str, group: Cgroup | None) -> Generator[float, None, Cell]:
        """Return a new cell from a warm zygote."""
        deadline = time.monotonic() + START_SECONDS
        zygote = self._host.zygote(name)
        yield from until(lambda: zygote.ready or zygote.failed, deadline)
        if not zygote.ready or zygote.failed:
            raise Failure("broken", f"the {name} zygote did not start: {zygote.failed or 'it took too long'}")
        cell = self.cell = self._host.start_cell(zygote, kind, self.limits, self._waiter, group)
        yield from until(lambda: cell.broken or cell.dead or (cell.folder >= 0 and cell.first.pidfd >= 0), deadline)
        if cell.folder < 0 or cell.broken or cell.dead:
            raise Failure("broken", cell.broken or "a session's cell did not come up")
        self._root = files.child(cell.folder, "0")
        return cell

    def _spawned(self, waiter: Waiter | None = None) -> Generator[float, None, Process]:
        cell = self._living()
        process = cell.spawn(waiter or self._waiter, self._area, self._group)
        deadline = time.monotonic() + START_SECONDS
        yield from until(lambda: process.pidfd >= 0 or process.died or process.refused or cell.broken, deadline)
        if cell.broken or process.refused or process.pidfd < 0:
            raise Failure("broken", cell.broken or process.refused or "a console could not be forked")
        return process

    def _ready(self, cell: Cell, process: Process) -> ProgramRun:
        return ProgramRun(self._host, cell, process, self._group, self._meters)
