"""The supervisor: one thread with one epoll. It never runs an agent's code, and never blocks on one session.

A client sends each session's requests over a socket; programs run in cells. The supervisor ends every session when the
control socket closes or the client's process ends. `connections` reads requests, and `sessions` executes them.
"""

import contextlib
import itertools
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from . import cgroups, probe, watching, wire
from .cell import user_of
from .cells import Cell, CellMessage, Waiter
from .cgroups import Cgroup, Cgroups
from .connections import ClientConnection
from .runs import LOOK_SECONDS, Failure
from .sessions import RunnerSession
from .syscalls import PR_SET_DUMPABLE, Unavailable, prctl
from .zygotes import Zygote

SPARE_DESCRIPTORS = 64
"""Number of descriptors kept free: a session needs about ten, and one that gets none must still be answered."""
_REMOVE_SECONDS = 0.02
_LOOKS = 64
"""Number of sessions that are checked together: each check reads /proc if no control group counts."""
_SHUT_DOWN_SECONDS = 5.0
_PRIORITY = -10


class Supervisor:
    """The event loop. It watches descriptors, wakes connections, and owns zygotes, control groups and cells' slots."""

    def __init__(self, settings: CellMessage) -> None:
        self._settings = settings
        self.mode: str = settings["mode"]
        self.namespaces = self.mode in ("root", "user")
        self.cgroups: Cgroups | None = None
        if self.namespaces:
            with contextlib.suppress(Unavailable):
                self.cgroups = cgroups.find()
                self.cgroups.sweep()
        self._around = cgroups.around() if self.mode == "container" else None
        self._settings |= {"owner": os.getpid(), "memory_tree": (self.cgroups or self._around) is not None}
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._zygotes: dict[str, Zygote] = {}
        self._woken: dict[ClientConnection, None] = {}
        self._waiting: set[ClientConnection] = set()
        self._next_deadline = float("inf")
        """The earliest deadline of a connection, on the monotonic clock."""
        self.connections: set[ClientConnection] = set()
        self.sessions: dict[int, RunnerSession] = {}
        self._slots: list[int] = []
        self._slots_used = self._count = 0
        self._cgroups_to_remove: list[Cgroup] = []
        self._computing: dict[RunnerSession, None] = {}
        """Sessions of which something may go on between runs, the one that was looked at last at the end."""
        self._look_at = float("inf")
        self._max_descriptors = _raise_descriptors()
        self.over = False

    def serve(self) -> None:
        """Serve until the client has ended."""
        while not self.over:
            for descriptor, _ in self._poll.poll(self._pause()):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            now = time.monotonic()
            if now >= self._next_deadline:
                self._wake_late()
            if now >= self._look_at:
                for session in [*itertools.islice(self._computing, _LOOKS)]:
                    del self._computing[session]
                    if session.computes():
                        self._computing[session] = None
                self._look_at = now + LOOK_SECONDS if self._computing else float("inf")
            while self._woken:
                woken, self._woken = self._woken, {}
                for connection in woken:
                    connection.step()
            if self._cgroups_to_remove:
                self._cgroups_to_remove = [group for group in self._cgroups_to_remove if not group.remove(0)]

    def _wake_late(self) -> None:
        """Wake connections whose deadline has passed, and find the next deadline."""
        now = time.monotonic()
        self._woken.update((item, None) for item in self._waiting if item.deadline <= now)
        self._next_deadline = min(
            (item.deadline for item in self._waiting if item.deadline > now), default=float("inf")
        )

    def _pause(self) -> float:
        if self._woken:
            return 0.0
        nearest, now = min(self._next_deadline, self._look_at), time.monotonic()
        if self._cgroups_to_remove:
            nearest = min(nearest, now + _REMOVE_SECONDS)
        return -1.0 if nearest == float("inf") else max(nearest - now, 0.0)

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._poll.unregister(descriptor)

    def want_to_write(self, descriptor: int, on: bool) -> None:
        """Call the handler also when the descriptor can be written; `on=False` ends that."""
        self._poll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if on else 0))

    def wake(self, connection: ClientConnection) -> None:
        if connection in self._waiting:
            self._woken[connection] = None

    def wait(self, connection: ClientConnection, deadline: float | None) -> None:
        """Wake a connection from now on at changes and at the deadline; with None, do not wake it any more."""
        if deadline is None:
            self._waiting.discard(connection)
            return
        self._waiting.add(connection)
        self._next_deadline = min(self._next_deadline, deadline)

    def wake_all(self) -> None:
        self._woken.update(dict.fromkeys(self._waiting))

    def zygote(self, name: str) -> Zygote:
        """Return the zygote of this name; start another one if there is none or it has failed."""
        zygote = self._zygotes.get(name)
        if zygote is None or zygote.failed:
            zygote = self._zygotes[name] = Zygote(self, self._settings | {"preload": name})
        return zygote

    def start_cell(self, zygote: Zygote, kind: str, limits: CellMessage, waiter: Waiter, group: Cgroup | None) -> Cell:
        self._count += 1
        if not self._slots:
            self._slots.append(self._slots_used)
            self._slots_used += 1
        slot = self._slots.pop()
        cell = Cell(self, self._count, slot, user_of(slot, self._settings), kind, limits, waiter)
        zygote.fork(cell, group)
        return cell

    def cell_ended(self, cell: Cell) -> None:
        """Free the slot of a dead cell."""
        self._slots.append(cell.slot)
        cell.close()
        if self.mode == "container" and not any(zygote.cells for zygote in self._zygotes.values()):
            # Without a pid namespace something may be left running. One session is served at a time then.
            watching.end_all_but({os.getpid(), *(zygote.pid for zygote in self._zygotes.values())})

    def group(self, limits: CellMessage) -> Cgroup | None:
        self._check_room()
        if self.cgroups is None:
            return self._around
        self._count += 1
        return self.cgroups.take(str(self._count), limits)

    def add_session(self, session: RunnerSession) -> int:
        """Register a session and return its number; a fork request names the session by it."""
        self._count += 1
        self.sessions[self._count] = session
        return self._count

    def release_cgroup(self, group: Cgroup, all_dead: bool) -> None:
        """Keep a session's control group for reuse, or remove it, later if a process in it is still ending."""
        idle = all_dead and self.cgroups is not None and self.cgroups.add_idle(group)
        if not idle and not group.remove(0):
            self._cgroups_to_remove.append(group)

    def watch_cpu(self, session: RunnerSession) -> None:
        """From now on check the CPU time of a session between its runs. In a container the engine limits it."""
        if self.namespaces:
            self._computing.setdefault(session)
            self._look_at = min(self._look_at, time.monotonic() + LOOK_SECONDS)

    def _check_room(self) -> None:
        probe_descriptor = os.dup(0)  # the lowest that is free
        os.close(probe_descriptor)
        if probe_descriptor > self._max_descriptors - SPARE_DESCRIPTORS:
            raise Failure(
                "broken",
                f"{len(self.sessions)} sessions are open and the supervisor may hold {self._max_descriptors} "
                "descriptors; close some, or raise `ulimit -Hn`",
            )

    def control(self, descriptor: int) -> None:
        """Accept connections from now on: each byte on the control socket brings one end of a new session's socket."""
        os.set_inheritable(descriptor, False)
        self._control = socket.socket(fileno=descriptor)
        self._control.setblocking(False)
        self.watch(descriptor, self._accept)
        # Its end must be seen even if a child of the client holds a copy of the socket.
        self._client = os.pidfd_open(os.getppid())
        self.watch(self._client, self.stop)

    def _accept(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self.stop()
        for descriptor in descriptors:
            self.connect(descriptor, descriptor)

    def connect(self, reading: int, writing: int) -> None:
        """Serve one client's stream: a socket, or two pipes."""
        os.set_blocking(reading, False)
        self.connections.add(ClientConnection(self, reading, writing, self._settings["preload_wanted"]))

    def stop(self) -> None:
        self.over = True

    def reap_children(self, descriptor: int) -> None:
        """Reap zygotes, and in a container also orphans."""
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, 4096)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def shut_down(self) -> None:
        """End every process, and wait until all have ended."""
        if os.getpid() == 1:
            os._exit(0)  # of a container: the kernel ends all that is in it, orphans of programs among them
        for zygote in self._zygotes.values():
            zygote.end("the supervisor ends")
        deadline = time.monotonic() + _SHUT_DOWN_SECONDS
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    time.sleep(0.001)
            for zygote in self._zygotes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(zygote.pid, signal.SIGKILL)
        if self.cgroups is not None:
            self.cgroups.close()


def _raise_descriptors() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def main() -> NoReturn:
    """Read the settings, report the guards, and serve.

    Without a control socket, serve one client over descriptors 0 and 1.
    """
    settings: CellMessage = json.loads(sys.argv[2])
    control: int | None = settings.pop("control", None)
    with contextlib.suppress(OSError):
        prctl(PR_SET_DUMPABLE, 0)
    with contextlib.suppress(OSError):  # where it may: programs that spin must not keep us from ending them
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    try:
        if settings["mode"] == "auto":
            settings["mode"] = probe.best_mode(settings["readonly"])
        capabilities = probe.capabilities(settings["mode"], settings["readonly"], settings.get("scratch", "/work"))
        supervisor = Supervisor(settings)
    except Unavailable as error:
        os.write(control or 1, wire.pack({"unavailable": error.missing, "remedies": list(error.remedies)}))
        sys.exit(1)
    woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the trainer's terminal is the trainer's
    signal.signal(signal.SIGTERM, lambda number, frame: supervisor.stop())
    supervisor.watch(woken, lambda: supervisor.reap_children(woken))
    supervisor.zygote("bare" if settings["preload_wanted"] == "auto" else settings["preload_wanted"])
    ready = wire.pack({"ready": True, "mode": settings["mode"], "capabilities": capabilities})
    if control is not None:
        supervisor.control(control)
    else:
        supervisor.connect(0, 1)
    os.write(control or 1, ready)
    try:
        supervisor.serve()
    finally:
        supervisor.shut_down()
    os._exit(0)
