"""Control groups: memory, processes and CPU time of a whole tree, counted by the kernel. Version 1 and version 2.

An owner (the supervisor) has one folder, with a group for each session below it. The folder's name identifies the owner
(pid namespace, pid, start time), so that the next owner can find and remove the groups of one that was killed. If
possible, the groups are below the owner's own group, so that its limits hold for them too.

An ordinary user without delegation cannot have groups: `find` raises `Unavailable` with the reason, and `watching` is
used.
"""

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import hierarchies
from .hierarchies import remove, words, write

_REMOVE_SECONDS = 0.2
_KILL_ROUNDS = 200
_MAX_IDLE = 16
_COUNTERS_BYTES = 256
_LEFTOVER_SHARE = 64
"""A group is reused if the kernel still counts less than 1/64 of its memory limit for ended processes."""


class Cgroup:
    """One session's group: a folder in version 2, one for each controller in version 1."""

    def __init__(self, memory: Path, pids: Path, *shares: Path) -> None:
        """`shares` are folders of version 1: one divides the processor among groups, and one counts its use."""
        self._memory, self._pids = memory, pids
        self.folders = list(dict.fromkeys((memory, pids, *shares)))
        """Folders that processes join and that are removed in the end; none if the group is an engine's."""
        self._unified = memory == pids
        counted = memory / "cpu.stat" if self._unified else [*shares, memory][-1] / "cpuacct.usage"
        self._used = _Counter(counted, b"usage_usec")
        self._kills = _Counter(memory / ("memory.events" if self._unified else "memory.oom_control"), b"oom_kill")
        self._refusals = _Counter(pids / "pids.events", b"max")
        self._current = _Counter(pids / "pids.current", b"")
        self._usage = _Counter(memory / ("memory.current" if self._unified else "memory.usage_in_bytes"), b"")
        self._killed = False
        self.bounds: tuple[int, ...] = ()
        """Its limits of memory and processes; empty if it must not be reused."""
        self.most_processes: int | str = "max"

    def join_descriptors(self) -> list[int]:
        """Return opened files through which a process joins by itself, with `join(descriptors)`.

        This is cheaper and safer than `add`: version 1 moves a single thread without a lock of the whole machine, and
        everything that the process does afterwards is counted in this group.
        """
        name = "cgroup.procs" if self._unified else "tasks"
        return [os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders]

    def add(self, pid: int) -> None:
        """Move a process to this group."""
        for folder in self.folders:
            write(folder / "cgroup.procs", pid)

    def processes(self) -> list[int]:
        """Return the pids of the group in this pid namespace."""
        return [int(word) for word in words(self._memory / "cgroup.procs")]

    def oom_kills(self) -> int:
        """Return the number of processes in this group that the kernel killed for memory."""
        return self._kills.value()

    def pids_hits(self) -> int:
        """Return how often the limit of processes refused a fork in this group."""
        return self._refusals.value()

    def cpu_seconds(self) -> float | None:
        """Return the CPU seconds of all processes of the group, also of ended ones; None if they are not counted."""
        fields = self._used.text().split()
        if self._unified:
            return int(fields[1]) / 1e6 if fields[:1] == [b"usage_usec"] else None
        return int(fields[0]) / 1e9 if fields else None

    def alone(self) -> bool:
        """Return whether the group contains at most one process with one thread."""
        return self._current.text() in (b"0\n", b"1\n")

    def reusable(self) -> bool:
        """Return whether another session can use the group: no process, hardly any memory, and never killed."""
        if self._killed or not self.bounds or self._current.text() != b"0\n":
            return False
        usage = self._usage.text().strip()
        return usage.isdigit() and int(usage) * _LEFTOVER_SHARE < self.bounds[0]

    def kill(self) -> None:
        """Kill all processes, and those that they fork meanwhile.

        In a container's own group, which contains the runner, kill none.
        """
        if not self.folders:
            return
        self._killed = True
        with contextlib.suppress(OSError):
            write(self._memory / "cgroup.kill", 1)
            return
        with contextlib.suppress(OSError):
            write(self._pids / "pids.max", 0)  # no process can fork any more, so the rounds end
        for _ in range(_KILL_ROUNDS):
            alive = self.processes()
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not alive:
                with contextlib.suppress(OSError):
                    write(self._pids / "pids.max", self.most_processes)
                return
            time.sleep(0.001)

    def remove(self, seconds: float = _REMOVE_SECONDS) -> bool:
        """Remove the group. Return False if processes in it are still ending; then call this again later."""
        for counter in (self._kills, self._refusals, self._current, self._usage, self._used):
            counter.close()
        outcomes = [remove(folder, seconds) for folder in self.folders]
        return all(outcomes)


class _Counter:
    """A number in a file, found by the name before it. The file stays open, because it is read after every step."""

    def __init__(self, path: Path, name: bytes) -> None:
        self._path, self._name = path, name
        self._file = -1

    def text(self) -> bytes:
        """Return the content of the file; empty if it cannot be read."""
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._file, _COUNTERS_BYTES, 0)
        except OSError:
            return b""

    def value(self) -> int:
        """Return the number; 0 if there is none."""
        pieces = self.text().split()
        return int(pieces[pieces.index(self._name) + 1]) if self._name in pieces else 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def around() -> Cgroup | None:
    """Return the group of the container that this process is in; None if it cannot be read.

    The engine set its limits and removes it. This process only reads its counters: all processes are in it already.
    """
    top = Path("/sys/fs/cgroup")
    for memory, pids, counter in ((top / "memory", top / "pids", "memory.oom_control"), (top, top, "memory.events")):
        if (memory / counter).exists():
            group = Cgroup(memory, pids)
            group.folders = []
            return group
    return None


class Cgroups:
    """An owner's folders, one in each hierarchy that is needed, and the groups below them; `find` returns it."""

    def __init__(self, folders: dict[str, Path], mounts: list[Path]) -> None:
        self._folders, self._mounts = folders, mounts
        self._idle: list[Cgroup] = []

    def take(self, name: str, limits: Mapping[str, Any]) -> Cgroup:
        """Return an idle group with these limits, or a new one, which costs a twentieth of the time of a short run."""
        bounds = limits["memory_bytes"], limits["processes"]
        for group in self._idle:
            if group.bounds == bounds and group.reusable():
                self._idle.remove(group)
                return group
        group = self.create(name, limits)
        group.bounds = bounds
        return group

    def add_idle(self, group: Cgroup) -> bool:
        """Keep a group for `take`, after every process that joined it is dead; return False if it is not reusable."""
        if len(self._idle) == _MAX_IDLE or not group.reusable():
            return False
        self._idle.append(group)
        return True

    def create(self, name: str, limits: Mapping[str, Any]) -> Cgroup:
        """Create a group for `memory_bytes` and `processes` of the limits, and one process more: the session's init."""
        memory, pids, *shares = (folder / name for folder in self._folders.values())
        group = Cgroup(memory, pids, *shares)
        group.most_processes = limits["processes"] + 1
        try:
            for folder in dict.fromkeys((memory, pids, *shares)):
                os.mkdir(folder)
            unified = memory == pids
            write(memory / ("memory.max" if unified else "memory.limit_in_bytes"), limits["memory_bytes"])
            swap, limit = ("memory.swap.max", 0) if unified else ("memory.memsw.limit_in_bytes", limits["memory_bytes"])
            with contextlib.suppress(FileNotFoundError):  # a kernel that does not count swap has no such file
                write(memory / swap, limit)
            write(pids / "pids.max", group.most_processes)
        except OSError:
            group.remove(0)
            raise
        return group

    def sweep(self) -> int:
        """End and remove the groups of owners that have ended, and return the number of these owners."""
        abandoned = hierarchies.abandoned(self._mounts)
        for folder in abandoned:
            _clear(folder)
        return len({folder.name for folder in abandoned})

    def close(self) -> None:
        """End and remove every group of this owner."""
        while self._idle:
            self._idle.pop().remove(0)
        for folder in dict.fromkeys(self._folders.values()):
            _clear(folder)


def join(descriptors: list[int]) -> None:
    """Move this process, which must have one thread, to the group the descriptors belong to."""
    for descriptor in descriptors:
        os.write(descriptor, b"0")


def find(process: str = "/proc/self") -> Cgroups:
    """Return the groups that the caller owns; raise `Unavailable` if it cannot have any."""
    return Cgroups(*hierarchies.owner_folders(process))


def _clear(owner: Path) -> None:
    """End the processes below an owner's folder and remove it."""
    with contextlib.suppress(OSError):
        for folder in [*(item for item in owner.iterdir() if item.is_dir()), owner]:
            group = Cgroup(folder, folder)
            group.kill()
            group.remove()
