"""A zygote: a warm interpreter that is forked for every session and never runs an agent's code. It is isolated itself.

    zygote   imports what programs use, then forks a cell for each order: "once" or "stay"
    once     the cell's PID 1 is itself the console: the cheapest way to run one program
    stay     the cell's PID 1 is an init: it forks and reaps consoles, and lives longer than the agent's processes

Both kinds of cell first send `{"folder"}` with a descriptor of their scratch folder, over a socket that the supervisor
gave them. The message about a death includes the CPU time and memory that the kernel measured. `cell` isolates the
processes, and `console` runs the agent's code.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import Any, NoReturn

from . import cell, cgroups, preload
from .console import Console, prepare
from .orders import REFUSED
from .syscalls import PR_SET_DUMPABLE, Unavailable, close_all_but, fork, prctl

CHANNEL = 3
"""The descriptor of a zygote's socket to its supervisor."""
MESSAGE_BYTES = 2**16
_MOST_DESCRIPTORS = 8
_PR_SET_CHILD_SUBREAPER = 36
_M_ARENA_MAX, _ARENAS = -8, 2
"""Number of malloc's arenas. GNU's malloc reserves 64 MiB of address space for each, so a few would use up a session's
limit."""

ForkMessage = dict[str, Any]


def send(channel: socket.socket, message: ForkMessage, *descriptors: int) -> None:
    socket.send_fds(channel, [json.dumps(message).encode()], descriptors)


def receive(channel: socket.socket) -> tuple[ForkMessage | None, list[int]]:
    """Return a message and its descriptors; the message is None if the other side has closed the socket."""
    data, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, _MOST_DESCRIPTORS)
    return (json.loads(data) if data else None), descriptors


def exit_message(status: int, usage: Any = None) -> ForkMessage:
    """Return the message that a process has ended, with its CPU seconds and peak memory if the kernel measured them."""
    cpu, rss = (usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024) if usage else (0.0, 0)
    return {"status": status, "cpu": cpu, "rss": rss}


def main() -> NoReturn:
    """Isolate this process, import the preloaded modules, and serve until the supervisor has ended."""
    channel = socket.socket(fileno=CHANNEL)
    settings, _ = receive(channel)
    assert settings is not None
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 0))  # the supervisor's is for itself
    sys.path[:] = [path for path in sys.path if "runner" not in os.path.basename(path)] + settings["paths"]
    try:
        cell.enter_zygote(settings)
        inside = os.pathsep.join(sys.path[-len(settings["paths"]) :] if settings["paths"] else ())
        settings["environment"] = {"PYTHONPATH": inside, **settings.get("environment", {})}  # for a python in a shell
        preload.load(settings["preload"])
    except (OSError, Unavailable) as error:
        send(channel, {"failed": str(getattr(error, "missing", error))})
        os._exit(1)
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    prepare()
    gc.collect()
    gc.freeze()  # or the first collection in a child would copy every page
    send(channel, {"ready": True})
    _serve(channel, settings)


def _serve(channel: socket.socket, settings: ForkMessage) -> NoReturn:
    poll = select.epoll()
    poll.register(channel, select.EPOLLIN)
    cells_by_pidfd: dict[int, tuple[int, int]] = {}  # pidfd: (the number of the cell, pid)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in cells_by_pidfd:
                number, pid = cells_by_pidfd.pop(descriptor)
                poll.unregister(descriptor)  # closing would not do: a child may hold a copy of it
                os.close(descriptor)
                send(channel, {"died": number, **exit_message(*os.wait4(pid, 0)[1:])})
                continue
            if descriptor != channel.fileno():
                continue
            order, descriptors = receive(channel)
            if order is None:
                os._exit(0)
            try:
                pid = cell.fork_session(settings)
            except OSError as error:
                send(channel, {"fork_failed": order["cell"], "text": f"a session could not be forked: {error}"})
            else:
                if pid == 0:
                    _become(order, descriptors, settings)
                watch = os.pidfd_open(pid)
                cells_by_pidfd[watch] = order["cell"], pid
                poll.register(watch, select.EPOLLIN)
                send(channel, {"forked": order["cell"]}, watch)
            for item in descriptors:
                os.close(item)


def _become(order: ForkMessage, descriptors: list[int], settings: ForkMessage) -> NoReturn:
    """Become the ordered cell, in the forked child process. This never returns."""
    channel = socket.socket(fileno=descriptors[0])
    try:
        if order["kind"] == "stay":
            close_all_but((0, 1, 2, *descriptors))
        folder = cell.enter_session(order["limits"], order["slot"], settings)
        send(channel, {"folder": True}, folder)
        os.close(folder)
        if order["kind"] == "stay":
            _Init(channel, order, settings).serve()
    except (OSError, Unavailable) as error:
        _refuse(channel, error)
    _run(channel, order, descriptors[1:], settings)


def _run(
    channel: socket.socket, order: ForkMessage, joining: list[int], settings: ForkMessage, area: str = ""
) -> NoReturn:
    """Give up the remaining privileges and serve as a console, in the working folder of the session or of a branch."""
    try:
        cgroups.join(joining)
        cell.confine(order["limits"], order["slot"], settings, (channel.fileno(),))
        scratch = os.path.dirname(os.getcwd())
        if area:
            cell.enter_branch(area, settings)
            os.chdir(os.path.join(scratch, area, "0"))
    except (OSError, Unavailable) as error:
        _refuse(channel, error)
    try:
        Console(channel, settings, scratch).serve()
    except BaseException:  # the agent closed our descriptors, or forged itself a way here: its process ends
        os._exit(1)


def _refuse(channel: socket.socket, error: Exception) -> NoReturn:
    """Report that isolation failed, and exit. No program has run yet."""
    channel.send(REFUSED + str(error).encode())
    os._exit(1)


class _Init:
    """PID 1 of a session that stays.

    It spawns and adopts processes, and reports deaths; it never receives a program.
    """

    def __init__(self, channel: socket.socket, order: ForkMessage, settings: ForkMessage) -> None:
        self._channel, self._order, self._settings = channel, order, settings
        self._children: set[int] = set()

    def serve(self) -> NoReturn:
        prctl(PR_SET_DUMPABLE, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 1)  # for the modes in which it is not PID 1
        woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(woken, 4096)
                    self._reap()
                else:
                    self._obey()

    def _obey(self) -> None:
        order, descriptors = receive(self._channel)
        if order is None:
            os._exit(0)
        if order["op"] == "spawn":
            pid = fork()
            if pid == 0:
                self._spawned(order, descriptors)
        elif order["op"] == "sweep":
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        else:
            pid = order["pid"]
        try:
            watch = os.pidfd_open(pid)
        except OSError as error:
            send(self._channel, {"lost": pid, "text": str(error)})
        else:
            self._children.add(pid)
            send(self._channel, {"lives": pid}, watch)
            os.close(watch)
        for item in descriptors:
            os.close(item)

    def _spawned(self, order: ForkMessage, descriptors: list[int]) -> NoReturn:
        channel = socket.socket(fileno=descriptors[0])
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _run(channel, self._order, descriptors[1:], self._settings, order["area"])

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, usage = ended
                if pid in self._children:
                    self._children.discard(pid)
                    send(self._channel, {"died": pid, **exit_message(status, usage)})
