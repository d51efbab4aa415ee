"""The isolation of a session: what a zygote does once, what each forked session does, and in which order.

    enter_zygote     enter namespaces and a new root folder: once, before anything is imported for the agent
    fork_session     fork a child that is PID 1 of a new pid namespace
    enter_session    mount its own /proc and scratch folders; still privileged, because an init forks consoles later
    confine          give up all privileges; the agent's code may run after it
    enter_branch     move a forked console to its own folder

Settings are a plain dict, because they are sent over a pipe:

    mode         "root" and "user": namespaces, with and without privileges; "container": the container isolates, and
                 only limits, filter and Landlock are added
    readonly     folders to show beside the interpreter: site-packages
    hidden       folders below them that programs see as empty: packages that contain the solutions of tasks
    owner        pid of the supervisor, from which the user ids of its slots are computed
    memory_tree  whether a control group counts the session's memory; if none does, memfd is refused
    environment  variables for the agent's programs beside the few that are always set
    scratch      mode "container": the folder that takes the place of /work; everything in it is deleted

Limits are a plain dict with the fields of `Limits`. No process in the namespaces can outlive the zygote: the kernel
ends a pid namespace with its PID 1, which is killed when its parent ends (death signal).
"""

import contextlib
import ctypes
import errno
import os
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from . import files, hierarchies, landlock, rlimits, root, seccomp, watching
from . import syscalls as kernel

_NAMESPACES = kernel.NEW_NAMESPACES & ~(kernel.CLONE_NEWUSER | kernel.CLONE_NEWCGROUP)
_AGENT = 1000
"""User and group that an agent sees as its own, if it cannot have ids of its own."""
_FIRST_SLOT, _SLOTS, _OWNERS = 1 << 30, 1 << 12, 1 << 18

_OWN_INODES = 4  # of the scratch's count: the root, the two folders, and one that tmpfs keeps

_own_pid_namespace = -1
places: root.MountPlan = []
"""Folders that this zygote shows, after it was entered."""
_mapped = 0
_top: list[str] = []
"""Entries of the root, because a branch cannot list it any more."""

CellSettings = Mapping[str, Any]


def enter_zygote(settings: CellSettings) -> None:
    """Enter new namespaces, in the modes that have them. This returns in a new process, PID 1 of the namespaces.

    The old process waits for the new one and ends with the same status.
    """
    global _own_pid_namespace
    if _has_namespaces(settings):
        if settings["mode"] == "user":
            _unshare_with_user(_NAMESPACES)
        else:
            kernel.unshare(_NAMESPACES)
        _continue_as_init()
        places[:] = root.build(settings.get("readonly", ()), settings.get("hidden", ()))
        socket.sethostname("sandbox")
        with contextlib.suppress(OSError):  # past the last one that this kernel knows
            for capability in range(64):
                kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
        _own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    else:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    _top[:] = [f"/{name}" for name in os.listdir("/")]
    _replace_environment(settings, [root.inside(path, places) for path in settings.get("readonly", ())])
    seccomp.prepare(**_filter(settings))

    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def fork_session(settings: CellSettings) -> int:
    """Fork a child and return its pid (0 in the child). It is PID 1 of a pid namespace and has a network of its own.

    In the mode "container" it has neither. The fork handlers of Python modules do not run.
    """
    global _mapped
    _mapped = rlimits.mapped()
    if not _has_namespaces(settings):
        return kernel.fork()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = -1
    try:
        pid = kernel.fork()
    finally:
        if pid:
            # Or the next unshare would be refused.
            kernel.enter_namespace(_own_pid_namespace, kernel.CLONE_NEWPID)
    if pid:
        # For the next one, while this one begins: names of abstract sockets belong to a network.
        kernel.unshare(kernel.CLONE_NEWNET)
    return pid


def enter_session(limits: Mapping[str, Any], slot: int, settings: CellSettings) -> int:
    """Mount /proc and the scratch in the child, and return an O_PATH descriptor of the scratch folder.

    In the scratch folder, `0` is the working folder, and `tmp` is both /tmp and /dev/shm. All are in one file system,
    so that they count together.
    """
    scratch = _scratch(settings)
    if _has_namespaces(settings):
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("proc", "/proc", "proc", kernel.MS_PLAIN, "subset=pid")
        inodes = limits["scratch_files"] + _OWN_INODES
        options = f"size={limits['scratch_bytes']},nr_inodes={inodes},mode=755"
        kernel.mount("tmpfs", scratch, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    else:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        files.empty(scratch)
    user = user_of(slot, settings)
    for name in ("0", "tmp"):
        path = f"{scratch}/{name}"
        os.mkdir(path, 0o700)
        if user is not None:
            os.chown(path, user, user)
    os.chdir(f"{scratch}/0")
    return os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def confine(limits: Mapping[str, Any], slot: int, settings: CellSettings, keep: tuple[int, ...] = ()) -> None:
    """Close every descriptor except 0, 1, 2 and `keep`, set the limits, and give up all privileges for good."""
    kernel.close_all_but((0, 1, 2, *keep))
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    if settings["mode"] == "user":
        _unshare_with_user(0)  # before the limits: the number of processes bounds the namespace that is current
    apart = _has_namespaces(settings)  # elsewhere the user has other processes too
    rlimits.install(limits, _mapped, in_group=bool(settings.get("memory_tree")), own_count=apart)
    if (user := user_of(slot, settings)) is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    # Otherwise /proc/self would belong to root, and this process could not open its own files there.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    with contextlib.suppress(OSError):  # where memory runs out round us, the agent's program is to go, not a trainer
        hierarchies.write("/proc/self/oom_score_adj", 1000)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    landlock.restrict(read=["/"], write=[_scratch(settings)], devices="/dev")
    seccomp.install(**_filter(settings))


def enter_branch(folder: str, settings: CellSettings) -> None:
    """Move a forked console to its branch's folder, which the supervisor made, and take away access to other folders.

    This adds a layer of Landlock, which needs no privilege. A layer can only take rights away, so the folder of a
    branch of this branch is created inside this one. /tmp stays shared with the original, and the original can read the
    branch's folder: both belong to the same agent. The kernel allows 16 layers; a branch of a later generation gets no
    layer of its own, and can read the folder of the branch that it came from by its absolute path.
    """
    scratch = _scratch(settings)
    branch_folder = f"{scratch}/{folder}"
    os.chdir(branch_folder)
    read = [path for path in _top if not f"{scratch}/".startswith(f"{os.path.realpath(path)}/")]
    try:
        landlock.restrict(read=read, write=[branch_folder, f"{scratch}/tmp"], devices="/dev")
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise


def _filter(settings: CellSettings) -> dict[str, bool]:
    apart = _has_namespaces(settings) or landlock.version() >= 6
    return {"memfd": bool(settings.get("memory_tree")), "unix_sockets": apart}


def _has_namespaces(settings: CellSettings) -> bool:
    return settings["mode"] in ("root", "user")


def _scratch(settings: CellSettings) -> str:
    return root.SCRATCH if _has_namespaces(settings) else os.path.abspath(settings["scratch"])


def user_of(slot: int, settings: CellSettings) -> int | None:
    """Return the user id for the programs of a slot, or None if it cannot be chosen.

    In the mode "root" each slot has its own user, who owns its pipes and whose processes are counted separately.
    """
    if settings["mode"] == "root":
        return _FIRST_SLOT + int(settings["owner"]) % _OWNERS * _SLOTS + slot % _SLOTS
    return _AGENT if settings["mode"] == "container" and os.geteuid() == 0 else None


def _unshare_with_user(flags: int) -> None:
    """Enter a user namespace whose only user is the agent's; outside it is the user of this process."""
    user, group = os.geteuid(), os.getegid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # otherwise this process could not write the maps
    kernel.unshare(kernel.CLONE_NEWUSER | flags)
    for name, text in [("uid_map", f"{_AGENT} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{_AGENT} {group} 1")]:
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _continue_as_init() -> None:
    """Fork, and return only in the child, the first process of the new pid namespace.

    The parent ends with the child's status. So if a process sends the parent a SIGTERM and waits for its end, all
    processes of the namespace have ended by then.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Until there is a handler that ends the child as well.
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(pid, signal.SIGKILL))  # then the end is seen below
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    kernel.close_all_but(())  # otherwise readers that wait for an end of file would wait for this process too
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _replace_environment(settings: CellSettings, packages: list[str]) -> None:
    """Replace the caller's environment variables by a few fixed ones.

    Overwrite the old ones in memory: /proc shows them.
    """
    scratch = "/tmp" if _has_namespaces(settings) else f"{_scratch(settings)}/tmp"
    programs = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    os.environ.clear()
    os.environ.update(
        PATH=":".join(dict.fromkeys(programs)),
        PYTHONPATH=":".join(packages),
        HOME=scratch,
        TMPDIR=scratch,
        LANG="C.UTF-8",
        USER="agent",
        LOGNAME="agent",
    )
    os.environ.update(settings.get("environment", {}))
    start, end = map(int, watching.status("self")[47:49])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
