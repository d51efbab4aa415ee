"""Tests in short-lived processes which guards this machine can enforce; it does not conclude that from version numbers.

`capabilities` returns the fields of `Capabilities` except `backend`; a guard that is absent or weaker has a sentence in
`notes`. In a container the engine isolates: the docker backend knows what cannot be tested from inside, and adds it.
"""

import contextlib
import errno
import functools
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import cell, cgroups, landlock, root
from .syscalls import CLONE_NEWUSER, Unavailable, call, unshare

_SECONDS = 20.0  # for a trial; it takes some 30 ms where nothing else runs
_PROCESSES = 4
_LIMITS = {
    "cpu_seconds": 10,
    "memory_bytes": 256 * 2**20,
    "processes": _PROCESSES,
    "file_bytes": 2**20,
    "scratch_bytes": 2**20,
    "scratch_files": 64,
    "open_files": 64,
}
_GROUP_BYTES = 16 * 2**20
_REFUSALS = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns` for this python",
    ),
}
_OTHER_BACKENDS = "use the docker or the remote backend"


def best_mode(readonly: Iterable[str] = ()) -> str:
    """Return the strongest mode that works; raise `Unavailable` with the reasons if none does."""
    reasons = []
    for mode in ("root", "user") if os.geteuid() == 0 else ("user",):
        try:
            _tried(mode, tuple(readonly), root.SCRATCH)
        except Unavailable as error:
            reasons.append(f"as {'root' if mode == 'root' else 'an ordinary user'}: {error.missing}")
            remedies = error.remedies
        else:
            return mode
    raise Unavailable("; ".join(reasons), *(remedies or [*_sysctls(), _OTHER_BACKENDS]))


def capabilities(mode: str, readonly: Iterable[str] = (), scratch: str = root.SCRATCH) -> dict[str, Any]:
    """Return the guards of a mode; raise `Unavailable` if a session cannot even start."""
    guards = {**_tried(mode, tuple(readonly), scratch)}
    guards["forks"] = mode in ("root", "user")
    guards["landlock"] = landlock.version() if guards.pop("landlock_holds") else 0
    guards["memory"], why = _memory(mode)
    guards["process_count"] = guards["process_count"] or guards["memory"] == "tree"  # the group counts them as well
    guards["notes"] = [*_notes(mode, guards), *why]
    return guards


def _memory(mode: str) -> tuple[str, list[str]]:
    if mode == "container":
        return "process", [
            "memory is bounded for each process alone: the engine's limit on the container bounds the tree"
        ]
    answer = _in_child(_try_groups)  # a child's groups are its own: those of sessions that are alive stay untouched
    if "missing" not in answer:
        return "tree", []
    weaker = (
        "memory and CPU time of a session are watched, and its processes are killed, instead of bounded; and sessions "
        "have no equal shares of the processors"
    )
    return "watched", [f"{weaker}: {answer['missing']}"]


def _notes(mode: str, guards: dict[str, Any]) -> list[str]:
    sentences = {
        "files": "programs can write outside their folders",
        "network": "a socket other than unix could be opened",
        "processes": "programs see processes that are not theirs",
        "process_count": "the number of processes is not bounded from inside: a group, or the engine, must do it",
        "syscalls": "the filter for system calls did not hold",
        "landlock": "no Landlock (Linux 5.13 with landlock in the list of `lsm=`): mounts alone guard the files",
        "own_user": "programs run as our own user, without any privilege: run as root to give each session a user",
    }
    return [sentence for name, sentence in sentences.items() if not guards[name]]


@functools.cache
def _tried(mode: str, readonly: tuple[str, ...], scratch: str) -> dict[str, Any]:
    """Return the results of the tests in a real session. Failures raise `Unavailable`; results are cached."""
    settings = {"mode": mode, "readonly": list(readonly), "owner": os.getpid(), "scratch": scratch}
    outside = {"root": os.stat("/").st_dev, "user": os.geteuid()}
    answer = _in_child(lambda pipe: _zygote(settings, outside, pipe))
    if "missing" in answer:
        raise Unavailable(answer["missing"], *answer["remedies"])
    return answer


def _zygote(settings: dict[str, Any], outside: dict[str, int], pipe: int) -> None:
    cell.enter_zygote(settings)
    pid = cell.fork_session(settings)
    if pid == 0:
        _answer(pipe, lambda: _session(settings, outside, pipe))
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise Unavailable("a session died while it was tried", _OTHER_BACKENDS)


def _session(settings: dict[str, Any], outside: dict[str, int], pipe: int) -> dict[str, Any]:
    os.close(cell.enter_session(_LIMITS, 0, settings))
    cell.confine(_LIMITS, 0, settings, keep=(pipe,))
    if settings["mode"] != "container":
        root.check_readable(cell.places)
    return {
        "files": _files(settings, outside["root"]),
        "network": _refused(lambda: socket.socket(socket.AF_INET)),
        "processes": [*filter(str.isdigit, os.listdir("/proc"))] == [str(os.getpid())],
        "syscalls": _refused(lambda: unshare(CLONE_NEWUSER)) and _refused(lambda: call("ptrace", 0, 0, 0, 0)),
        "landlock_holds": _refused(lambda: open("/proc/self/comm", "wb").close()),
        "own_user": settings["mode"] != "user" and os.getuid() != outside["user"],
        "process_count": _most_children() < _PROCESSES,
    }


def _files(settings: dict[str, Any], outside: int) -> bool:
    is_separate = settings["mode"] == "container" or os.stat("/").st_dev != outside
    places = ["/", "/usr", os.path.dirname(os.__file__)]
    return is_separate and all(_refused(functools.partial(open, f"{path}/palaestra-trial", "wb")) for path in places)


def _most_children() -> int:
    """Return how many children can run at once, up to twice the limit."""
    children: list[int] = []
    with contextlib.suppress(BlockingIOError):
        while len(children) < 2 * _PROCESSES:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children)


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EROFS)
    return False


def _try_groups(pipe: int) -> dict[str, Any]:
    """Raise `Unavailable` unless the kernel kills a process that takes more memory than its group may have."""
    groups = cgroups.find()
    try:
        group = groups.create("trial", {"memory_bytes": _GROUP_BYTES, "processes": _PROCESSES})
        descriptors = group.join_descriptors()
        outcome = _in_child(lambda _: _take(descriptors))
        if "missing" not in outcome or not group.oom_kills():
            raise Unavailable("a group was made, but it did not bound memory")
    finally:
        groups.close()
    return {}


def _take(descriptors: list[int]) -> dict[str, Any]:
    cgroups.join(descriptors)
    memory = mmap.mmap(-1, 4 * _GROUP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1
    return {}


def _in_child(work: Callable[[int], object]) -> dict[str, Any]:
    """Call `work(pipe)` in a fork, and return the JSON answer that the fork or its child wrote to the pipe."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _answer(writer, lambda: work(writer))
    os.close(writer)
    text, deadline = b"", time.monotonic() + _SECONDS
    try:
        while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (part := os.read(reader, 65536)):
                break
            text += part
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not text:
        return {"missing": "a trial ended without an answer", "remedies": [_OTHER_BACKENDS]}
    answer: dict[str, Any] = json.loads(text.splitlines()[0])
    return answer


def _answer(pipe: int, work: Callable[[], object]) -> None:
    """Write the result of `work`, if it has one, or its error, and exit. This runs in a child process."""
    try:
        outcome = work()
    except Unavailable as error:
        outcome = {"missing": error.missing, "remedies": error.remedies}
    except Exception as error:  # whatever it is, it is the reason why this machine cannot do it
        outcome = {"missing": f"{type(error).__name__}: {error}", "remedies": [*_sysctls(), _OTHER_BACKENDS]}
    finally:
        if outcome is not None:
            os.write(pipe, json.dumps(outcome).encode() + b"\n")
        os._exit(0)


def _sysctls() -> list[str]:
    """Return the commands that allow namespaces to ordinary users, if a kernel setting of this machine forbids them."""
    remedies = []
    for path, (off, remedy) in _REFUSALS.items():
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            if file.read().strip() == off:
                remedies.append(remedy)
    return remedies
