"""The supervisor's records of the cells that were forked from zygotes, and of the processes in a cell.

Each object reads messages from its socket, keeps them as plain attributes, and wakes the connection that waits.
Messages of a zygote or an init are trusted. A console sends only a few bytes, which the session that waits for them
checks.
"""

import contextlib
import json
import os
import select
import signal
import socket
from typing import Any, Protocol

from . import zygote as child
from .cgroups import Cgroup
from .orders import READY, REFUSED
from .output import Outputs

CONSOLE_BYTES = 2**17
"""Maximum bytes of a console's reply that are read."""

CellMessage = dict[str, Any]
_buffer = bytearray(CONSOLE_BYTES)
_view = memoryview(_buffer)


class Waiter(Protocol):
    """Interface of an object that is woken when something has changed."""

    def wake(self) -> None: ...


class Host(Protocol):
    """Interface of the supervisor. Some types are `Any`, because the modules that define them import this one."""

    mode: str
    namespaces: bool
    sessions: dict[int, Any]
    connections: set[Any]

    def watch(self, descriptor: int, handler: Any) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def want_to_write(self, descriptor: int, on: bool) -> None: ...
    def wake(self, connection: Any) -> None: ...
    def wake_all(self) -> None: ...
    def wait(self, connection: Any, deadline: float | None) -> None: ...
    def zygote(self, name: str) -> Any: ...
    def start_cell(
        self, zygote: Any, kind: str, limits: CellMessage, waiter: Waiter, group: Cgroup | None
    ) -> "Cell": ...
    def cell_ended(self, cell: "Cell") -> None: ...
    def group(self, limits: CellMessage) -> Cgroup | None: ...
    def release_cgroup(self, group: Cgroup, all_dead: bool) -> None: ...
    def watch_cpu(self, session: Any) -> None: ...
    def add_session(self, session: Any) -> int: ...
    def stop(self) -> None: ...


class Process:
    """A process that runs an agent's code: a console, or the program that replaced it."""

    def __init__(self, host: Host, waiter: Waiter, channel: socket.socket) -> None:
        self._host, self._waiter = host, waiter
        self.channel = channel
        self.pidfd = -1
        self.pid = 0
        """Process id as the supervisor sees it; 0 while unknown."""
        self.ready = False
        self.awaited = b""
        """First bytes of the reply that is waited for; other messages are ignored."""
        self.reply = b""
        self.hung_up = False
        """Whether the process has closed its socket; the init or the zygote reports its death."""
        self.died: CellMessage | None = None
        self.refused = ""
        self.outputs: Outputs | None = None
        """The pipes of its stdout and stderr; None if the next run needs new ones."""
        self._status = -1
        self._end: select.poll | None = None

    def listen(self) -> None:
        self.channel.setblocking(False)
        self._host.watch(self.channel.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            message = _view[: self.channel.recv_into(_buffer)].tobytes()
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.hung_up = True
            self._host.unwatch(self.channel.fileno())
        elif not self.ready and message[:1] == REFUSED:  # this first message is trusted: no program has run yet
            self.refused = message[1:].decode(errors="replace")
        elif self.ready and self.awaited and not self.reply and message.startswith(self.awaited):
            self.reply = message
        else:
            self.ready = True
            return
        self._waiter.wake()

    def done(self) -> bool:
        """Return whether the process has replied, or is dead."""
        return bool(self.reply) or self.died is not None

    def awaits(self, beginning: bytes) -> None:
        """Wait for a reply that begins with these bytes; if empty, ignore every reply."""
        self.awaited, self.reply = beginning, b""

    def identify(self, pidfd: int) -> None:
        self.pidfd, self.pid = pidfd, host_pid(pidfd)
        self._end = select.poll()
        self._end.register(pidfd, select.POLLIN)
        self._waiter.wake()

    @property
    def gone(self) -> bool:
        """Return whether the process has ended, even if its exit message has not arrived yet."""
        return self.died is not None or (self._end is not None and bool(self._end.poll(0)))

    def peak_memory(self) -> int:
        """Return the peak memory of the process in bytes; 0 if it cannot be read."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self._status < 0:
                self._status = os.open(f"/proc/{self.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._status, 4096, 0).partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
        return 0

    def ended(self, message: CellMessage) -> None:
        self.died = message
        self._waiter.wake()

    def tell(self, order: bytes, *descriptors: int) -> None:
        """Send an order. If that fails, nothing is raised: the process is dead, or the run ends at its deadline."""
        with contextlib.suppress(OSError):
            if descriptors:
                socket.send_fds(self.channel, [order], descriptors)
            else:
                self.channel.send(order)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def close_outputs(self) -> None:
        """Close the pipes of stdout and stderr, if there are any. The next run gets new ones."""
        outputs, self.outputs = self.outputs, None
        for pipe in outputs.both if outputs is not None else ():
            self._host.unwatch(pipe.reading)
            pipe.close()

    def close(self) -> None:
        self._end = None
        if self.channel.fileno() >= 0:
            self._host.unwatch(self.channel.fileno())
            self.channel.close()
        for descriptor in (self.pidfd, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self._status = -1


class Cell:
    """A cell: a pid namespace whose first process is a console ("once") or an init ("stay")."""

    def __init__(
        self, host: Host, number: int, slot: int, user: int | None, kind: str, limits: CellMessage, waiter: Waiter
    ) -> None:
        self._host, self.waiter = host, waiter
        self.number, self.slot, self.user, self.kind, self.limits = number, slot, user, kind, limits
        self.channel, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.first = Process(host, waiter, self.channel)
        """Its PID 1."""
        self.folder = -1
        self.branches = 1
        self.seats = 1
        """Number of sessions in the cell: a fork stays in the cell of its original."""
        self.broken = ""
        """Why the cell cannot be used any more, if the agent did not cause it."""
        self._doomed = False
        self._processes: dict[int, Process] = {}
        self._expected: list[Process] = []

    def ordered(self, group: Cgroup | None) -> tuple[CellMessage, list[int]]:
        """Return the order to fork this cell, and its descriptors. A one-shot cell's PID 1 joins the group itself."""
        joining = group.join_descriptors() if group is not None and self.kind == "once" else []
        self.channel.setblocking(False)
        self._host.watch(self.channel.fileno(), self._hear)
        order = {"cell": self.number, "kind": self.kind, "slot": self.slot, "limits": self.limits}
        return order, [self._far.detach(), *joining]

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel, child.MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._host.unwatch(self.channel.fileno())
            return
        if data[:1] == REFUSED:
            self.broken = f"the walls of a session could not be built: {data[1:].decode(errors='replace')}"
        elif data != READY:
            self._take(json.loads(data), descriptors)
        self.waiter.wake()

    def _take(self, message: CellMessage, descriptors: list[int]) -> None:
        if "folder" in message:
            self.folder = descriptors[0]
        elif "lives" in message:
            process = self._expected.pop(0)
            process.identify(descriptors[0])
            self._processes[message["lives"]] = process
        elif "lost" in message:
            self._expected.pop(0).ended(child.exit_message(0))
        elif "died" in message and message["died"] in self._processes:
            self._processes.pop(message["died"]).ended(message)

    def spawn(self, waiter: Waiter, area: str, group: Cgroup | None) -> Process:
        """Return a new console for the session of this area; its pid is known when the init has answered."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = Process(self._host, waiter, near)
        joining = group.join_descriptors() if group is not None else []
        try:
            self._expected.append(process)
            self.tell({"op": "spawn", "area": area}, far.fileno(), *joining)
        finally:
            far.close()
            for descriptor in joining:
                os.close(descriptor)
        process.listen()
        return process

    def adopt(self, process: Process, pid: int) -> None:
        """Let the init watch a process that a console forked; `pid` is the number that the process reports."""
        self._expected.append(process)
        self.tell({"op": "adopt", "pid": pid})

    def sweep(self, group: Cgroup | None) -> None:
        """End every process of a session except the init; if sessions share the cell, only those in `group`."""
        if self.seats == 1:
            self.tell({"op": "sweep"})
        elif group is not None:
            group.kill()

    def tell(self, order: CellMessage, *descriptors: int) -> None:
        with contextlib.suppress(OSError):
            child.send(self.channel, order, *descriptors)

    @property
    def dead(self) -> bool:
        return self.first.died is not None

    def identify(self, pidfd: int) -> None:
        self.first.identify(pidfd)
        if self._doomed:
            self.kill()

    def kill(self) -> None:
        """End every process of the cell: the kernel ends a pid namespace with its PID 1."""
        self._doomed = True
        self.first.kill()

    def ended(self, message: CellMessage, broken: str = "") -> None:
        """Record that PID 1 is dead, and with it every process of the cell."""
        self.broken = self.broken or broken
        if self.dead:
            return
        self.first.ended(message)
        for process in [*self._processes.values(), *self._expected]:
            process.ended(child.exit_message(signal.SIGKILL))
        self._processes.clear()
        self._expected.clear()
        self.waiter.wake()
        self._host.cell_ended(self)

    def close(self) -> None:
        """Close the descriptors of the cell."""
        self.first.close()
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1


def host_pid(pidfd: int) -> int:
    """Return the pid of a pidfd in this pid namespace; 0 if the process has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return max(int(file.read().partition(b"\nPid:")[2].split(None, 1)[0]), 0)
