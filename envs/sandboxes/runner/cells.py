"""What the supervisor knows of what it started: zygotes, the places (cells) forked from them, processes in a place.

Each object takes in what its socket says, keeps it as plain attributes, and wakes whoever waits. What comes from a
zygote or an init is believed; what comes from a console is a few bytes, looked at by the session that asked for them.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from typing import Any, Protocol

from . import zygote as child
from .cgroups import Group
from .orders import READY, REFUSED

CONSOLE_BYTES = 2**17
"""The longest reply of a console that is read."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

Message = dict[str, Any]
_buffer = bytearray(CONSOLE_BYTES)
_view = memoryview(_buffer)


class Loop(Protocol):
    """What a cell needs of the supervisor."""

    def watch(self, descriptor: int, handler: Any) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def wake_all(self) -> None: ...
    def gone(self, place: "Place") -> None: ...


class Waiter(Protocol):
    """Somebody who waits for a change."""

    def wake(self) -> None: ...


class Process:
    """A process that runs an agent's code: a console, or what it became."""

    def __init__(self, loop: Loop, waiter: Waiter, channel: socket.socket) -> None:
        self._loop, self._waiter = loop, waiter
        self.channel = channel
        self.pidfd = -1
        self.pid = 0
        """As the supervisor sees it, 0 while unknown."""
        self.ready = False
        self.replies: list[bytes] = []
        self.died: Message | None = None
        self.refused = ""
        self._status = -1

    def listen(self) -> None:
        self.channel.setblocking(False)
        self._loop.watch(self.channel.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            said = bytes(_view[: self.channel.recv_into(_buffer)])
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:  # it let go of the socket; its death is told by others
            self._loop.unwatch(self.channel.fileno())
        elif not self.ready and said[:1] == REFUSED:  # the first word is ours: no program has run yet
            self.refused = said[1:].decode(errors="replace")
        elif not self.ready:
            self.ready = True
            if said != READY:
                self.replies.append(said)
        elif len(self.replies) < 2:
            self.replies.append(said)
        self._waiter.wake()

    def known(self, pidfd: int) -> None:
        self.pidfd, self.pid = pidfd, host_pid(pidfd)
        self._waiter.wake()

    def held(self) -> int:
        """The most memory it has held at once, in bytes; 0 where that cannot be read."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self._status < 0:
                self._status = os.open(f"/proc/{self.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._status, 4096, 0).partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
        return 0

    def ended(self, message: Message) -> None:
        self.died = message
        self._waiter.wake()

    def tell(self, order: bytes, *descriptors: int) -> None:
        """Send an order; one that cannot be taken shows in the death or the silence that follows."""
        with contextlib.suppress(OSError):
            rights = struct.pack(f"{len(descriptors)}i", *descriptors)
            self.channel.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        if self.channel.fileno() >= 0:
            self._loop.unwatch(self.channel.fileno())
            self.channel.close()
        for descriptor in (self.pidfd, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self._status = -1


class Place:
    """A cell: a pid namespace whose first process is a console ("once") or an init ("stay")."""

    def __init__(self, loop: Loop, number: int, slot: int, kind: str, limits: Message, waiter: Waiter) -> None:
        self._loop = loop
        self.number, self.slot, self.kind, self.limits = number, slot, kind, limits
        self.channel, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.first = Process(loop, waiter, self.channel)
        """Its PID 1."""
        self.folder = -1
        self.branches = 1
        self.seats = 1
        """How many sessions live in it: a fork stays in the place of its original."""
        self.broken = ""
        """Why it cannot be used any more, where that is not the agent's doing."""
        self.waiter = waiter
        self._doomed = False
        self._processes: dict[int, Process] = {}
        self._expected: list[Process] = []

    def order(self, channel: socket.socket, group: Group | None) -> None:
        """Ask the zygote for it. One-shot: its PID 1 joins the group by itself."""
        joining = group.join_descriptors() if group is not None and self.kind == "once" else []
        order = {"place": self.number, "kind": self.kind, "slot": self.slot, "limits": self.limits}
        try:
            child.send(channel, order, self._far.fileno(), *joining)
        finally:
            self._far.close()
            for descriptor in joining:
                os.close(descriptor)
        self.channel.setblocking(False)
        self._loop.watch(self.channel.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.channel, child.MESSAGE_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._loop.unwatch(self.channel.fileno())
            return
        if data[:1] == REFUSED:
            self.broken = f"the walls of a session could not be built: {data[1:].decode(errors='replace')}"
        elif data != READY:
            self._take(json.loads(data), descriptors)
        self.waiter.wake()

    def _take(self, message: Message, descriptors: list[int]) -> None:
        if "folder" in message:
            self.folder = descriptors[0]
        elif "lives" in message:
            process = self._expected.pop(0)
            process.known(descriptors[0])
            self._processes[message["lives"]] = process
        elif "lost" in message:
            self._expected.pop(0).ended({"status": 0, "cpu": 0.0, "rss": 0})
        elif "died" in message and message["died"] in self._processes:
            self._processes.pop(message["died"]).ended(message)

    def spawn(self, waiter: Waiter, area: str, group: Group | None) -> Process:
        """A new console for the session of this area; it is known once the init has answered."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = Process(self._loop, waiter, near)
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
        """Have the init look after a process that a console forked; `pid` is what that one says it is."""
        self._expected.append(process)
        self.tell({"op": "adopt", "pid": pid})

    def tell(self, order: Message, *descriptors: int) -> None:
        with contextlib.suppress(OSError):
            child.send(self.channel, order, *descriptors)

    @property
    def dead(self) -> bool:
        return self.first.died is not None

    def born(self, pidfd: int) -> None:
        self.first.known(pidfd)
        if self._doomed:
            self.kill()

    def kill(self) -> None:
        """End every process in it: the kernel ends a pid namespace with its PID 1."""
        self._doomed = True
        self.first.kill()

    def ended(self, message: Message, broken: str = "") -> None:
        """Its PID 1 is dead, and so is everything in it."""
        self.broken = self.broken or broken
        if self.dead:
            return
        self.first.ended(message)
        for process in [*self._processes.values(), *self._expected]:
            process.ended({"status": signal.SIGKILL, "cpu": 0.0, "rss": 0})
        self._processes.clear()
        self._expected.clear()
        self.waiter.wake()
        self._loop.gone(self)

    def close(self) -> None:
        """Let go of what stands for it here."""
        self.first.close()
        if self.folder >= 0:
            os.close(self.folder)
            self.folder = -1


class Zygote:
    """A zygote's process and socket, and the places that were forked from it."""

    def __init__(self, loop: Loop, settings: Message) -> None:
        self._loop = loop
        self.name: str = settings["preload"]
        self.ready = False
        self.failed = ""
        self.remedies: list[str] = []
        self.places: dict[int, Place] = {}
        self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = os.path.dirname(os.path.abspath(__file__))
        # Not -I: it would not listen to the hash seed. Nothing else is in this environment.
        words = [sys.executable, "-s", "-S", "-P", "-B", script, "zygote"]
        environment = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", **dict.fromkeys(_THREADS, "1")}
        with open(os.devnull, "r+b", buffering=0) as null:
            moves = [(os.POSIX_SPAWN_DUP2, null.fileno(), 0), (os.POSIX_SPAWN_DUP2, null.fileno(), 1)]
            moves.append((os.POSIX_SPAWN_DUP2, far.fileno(), child.CHANNEL))
            self.pid = os.posix_spawn(sys.executable, words, environment, file_actions=moves)
        far.close()
        child.send(self.channel, settings)
        self.channel.setblocking(False)
        loop.watch(self.channel.fileno(), self._hear)

    @property
    def usable(self) -> bool:
        return not self.failed

    def _hear(self) -> None:
        try:
            message, descriptors = child.receive(self.channel)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = None, []
        if message is None:
            self.end("its process is gone")
        elif "ready" in message:
            self.ready = True
            self._loop.wake_all()
        elif "failed" in message:
            self.remedies = message["remedies"]
            self.end(message["failed"])
        elif "born" in message:
            self.places[message["born"]].born(descriptors[0])
        elif "died" in message:
            self.places.pop(message["died"]).ended(message)
        elif "stillborn" in message:
            self.places.pop(message["stillborn"]).ended({"status": 0, "cpu": 0.0, "rss": 0}, message["text"])

    def end(self, reason: str) -> None:
        """It is gone or has to go, and its places with it."""
        if self.failed:
            return
        self.failed = reason
        self._loop.unwatch(self.channel.fileno())
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for place in [*self.places.values()]:
            place.kill()
            place.ended({"status": signal.SIGKILL, "cpu": 0.0, "rss": 0}, f"the {self.name} zygote failed: {reason}")
        self.places.clear()
        self._loop.wake_all()


def host_pid(pidfd: int) -> int:
    """The pid behind a pidfd as this process sees it, 0 where it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        for line in file:
            if line.startswith(b"Pid:"):
                return max(int(line[4:]), 0)
    return 0
