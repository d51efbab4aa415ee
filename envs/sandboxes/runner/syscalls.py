"""System calls for which Python has no function, made through ctypes, and the numbers of the calls in the filter.

Only what the runner needs. A call that fails raises OSError with the name of the call. If this machine does not support
something at all, such as its processor, `Unavailable` is raised, which says what would help.
"""

import ctypes
import errno
import functools
import os
import platform
import struct
import time

LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY = 1
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MS_PLAIN = MS_NOSUID | MS_NODEV | MS_NOEXEC
MNT_DETACH = 2
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_FORK = ctypes.PyDLL(None, use_errno=True).fork
_LAST_DESCRIPTOR = 2**31 - 1
_BURIAL_SECONDS = 1.0
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version, of this process
_NO_CAPABILITIES = (ctypes.c_uint32 * 6)()
_CAPSET = LIBC.capset  # looked up here, since a fork that is the first to look pays for it in page faults

# name: (x86_64, aarch64). From asm/unistd_64.h and asm-generic/unistd.h; None where a processor has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # mounts and roots
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428),
    "move_mount": (429, 429), "mount_setattr": (442, 442), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224),
    "swapoff": (168, 225), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "nfsservctl": (180, 42),
    "ustat": (136, None), "sysfs": (139, None),
    # namespaces and identity of the machine
    "unshare": (272, 97), "setns": (308, 268), "sethostname": (170, 161), "setdomainname": (171, 162),
    "personality": (135, 92),
    # files that others use too: a lock, or a word of what happens to them
    "flock": (73, 32),
    # the kernel itself
    "bpf": (321, 280), "perf_event_open": (298, 241), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "create_module": (174, None), "query_module": (178, None),
    "get_kernel_syms": (177, None), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "lookup_dcookie": (212, 18), "seccomp": (317, 277), "_sysctl": (156, None),
    "afs_syscall": (183, None), "tuxcall": (184, None), "security": (185, None), "vserver": (236, None),
    "getpmsg": (181, None), "putpmsg": (182, None), "uselib": (134, None),
    # hardware and clocks
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "vhangup": (153, 58), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "settimeofday": (164, 170),
    # other processes' memory
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "userfaultfd": (323, 282), "memfd_secret": (447, 447), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    "set_mempolicy_home_node": (450, 450),
    # ways round: queues that run calls for one, and memory that outlives its process
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0),
    "io_submit": (209, 2), "io_cancel": (210, 3), "io_destroy": (207, 1), "io_getevents": (208, 4),
    "io_pgetevents": (333, 292), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
}  # fmt: skip
"""System calls that every program is refused."""
NUMBERS = REFUSED | {
    "clone": (56, 220), "clone3": (435, 435), "close_range": (436, 436), "fcntl": (72, 25), "ioctl": (16, 29),
    "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446),
    "memfd_create": (319, 279), "prlimit64": (302, 261), "socket": (41, 198), "socketpair": (53, 199),
}  # fmt: skip


class Unavailable(Exception):
    """Raised if this machine cannot provide a guard. `remedies` are the options to get it, each a sentence."""

    def __init__(self, missing: str, *remedies: str) -> None:
        super().__init__("; ".join([missing, *remedies]))
        self.missing, self.remedies = missing, remedies


def machine() -> str:
    """Return `x86_64` or `aarch64`, the only processors whose call numbers are known to this module."""
    processor = platform.machine()
    if processor not in ("x86_64", "aarch64"):
        raise Unavailable(
            f"the system call filter knows x86_64 and aarch64, this machine is {processor!r}",
            "use the docker or the remote backend",
        )
    return processor


@functools.cache
def number(name: str) -> int | None:
    """Return the number of a system call on this processor; None if it has no such call."""
    return NUMBERS[name][0 if machine() == "x86_64" else 1]


def call(name: str, *arguments: object) -> int:
    """Make a system call by its name; arguments are ints, bytes, None or ctypes objects."""
    system_call = number(name)
    if system_call is None:
        raise Unavailable(f"{machine()} has no system call {name}")
    words = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return _checked(name, LIBC.syscall(ctypes.c_long(system_call), *words))


def fork() -> int:
    """Fork a process with one thread, without the fork handlers of Python modules that `os.fork` runs in the child.

    These handlers renew each lock and thread and draw new random seeds, which costs most of a MiB of pages that would
    otherwise be shared. Fork handlers of C libraries do run. A child that runs programs calls `random.seed` itself.

    The processes of a fork bomb count until the kernel has removed them, a moment after they were killed. A fork that
    fails for that reason is tried again.
    """
    deadline = time.monotonic() + _BURIAL_SECONDS
    while (pid := _FORK()) < 0 and ctypes.get_errno() == errno.EAGAIN and time.monotonic() < deadline:
        time.sleep(0.01)
    return _checked("fork", pid)


def unshare(flags: int) -> None:
    _checked("unshare", LIBC.unshare(flags))


def enter_namespace(descriptor: int, kind: int) -> None:
    _checked("setns", LIBC.setns(descriptor, kind))


def prctl(option: int, value: int = 0, third: object = 0) -> None:
    words = [ctypes.c_ulong(third) if isinstance(third, int) else third, ctypes.c_ulong(0), ctypes.c_ulong(0)]
    _checked(f"prctl({option})", LIBC.prctl(option, ctypes.c_ulong(value), *words))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    *names, data = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(f"mount {kind or source} on {target}", LIBC.mount(*names, ctypes.c_ulong(flags), data))


def make_read_only(target: str, *, recursive: bool, devices: bool = False) -> None:
    """Make a mount read-only, without set-uid programs and, by default, devices; `recursive` includes mounts below."""
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV)
    mount_attributes = struct.pack("4Q", attributes, 0, 0, 0)  # to set, to clear, propagation, user namespace
    flags = _AT_RECURSIVE if recursive else 0
    call("mount_setattr", _AT_FDCWD, os.fsencode(target), flags, mount_attributes, len(mount_attributes))


def pivot_root_here() -> None:
    """Make the current folder the root, and unmount the old root."""
    call("pivot_root", b".", b".")
    _checked("umount .", LIBC.umount2(b".", MNT_DETACH))
    os.chdir("/")


def drop_capabilities() -> None:
    """Drop all permitted, effective and inheritable capabilities."""
    _checked("capset", _CAPSET(_CAPABILITY_HEADER, _NO_CAPABILITIES))


def has_capability(which: int) -> bool:
    """Return whether a capability, by its number, is effective."""
    sets = (ctypes.c_uint32 * 6)()
    _checked("capget", LIBC.capget(_CAPABILITY_HEADER, sets))
    return bool(sets[3 * (which // 32)] >> (which % 32) & 1)


def close_all_but(keep: tuple[int, ...]) -> None:
    """Close every descriptor that is not in `keep`, however high."""
    first = 0
    for descriptor in [*sorted(set(keep)), _LAST_DESCRIPTOR + 1]:
        if descriptor > first:
            call("close_range", first, descriptor - 1, 0)
        first = descriptor + 1


def _checked(what: str, outcome: int) -> int:
    if outcome == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return outcome
