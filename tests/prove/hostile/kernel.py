"""The kernel itself: namespaces, mounts, identities, clocks, and the calls in which its faults are found."""

# ruff: noqa: SIM115

from palaestra.envs.sandboxes import Result

from .program import hostile


@hostile("syscalls")
def new_user_namespace(given):
    """A namespace in which it would be root."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0:
        print(given["token"])
    pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        print(given["token"], flush=True)
        libc._exit(0)


@hostile("syscalls", control="root")
def other_namespaces(given):
    """Every other kind of namespace, and those of other processes."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    for flag in (0x20000, 0x40000000, 0x8000000, 0x4000000, 0x20000000, 0x2000000, 0x80):
        if libc.unshare(flag) == 0:
            print(given["token"], hex(flag))
    for name in ("mnt", "net", "pid", "user"):
        try:
            if libc.setns(os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0) == 0:
                print(given["token"], name)
        except OSError as error:
            print(error)


@hostile("syscalls", control="root")
def mounts(given):
    """A file system of its own choice, by the old call and by the new ones."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    os.mkdir("place")
    for kind in (b"proc", b"tmpfs"):
        if libc.mount(b"none", b"place", kind, 0, None) == 0:
            libc.umount2(b"place", 2)
            print(given["token"], kind)
    if libc.mount(b"none", b"/", None, 0x44000 if not given["bare"] else 0x10000000, None) == 0:
        print(given["token"], "propagation")
    if libc.syscall(430, b"tmpfs", 0) >= 0:
        print(given["token"], "fsopen")
    if libc.syscall(428, -100, b"/", 1) >= 0:
        print(given["token"], "open_tree")


@hostile("", control="root")
def become_root(given):
    """Root, or any of root's powers, present or possible."""
    import os

    changes = (os.setresuid, 0, 0, 0), (os.setuid, 0), (os.setgid, 0), (os.setgroups, [0])
    for change, *arguments in changes:
        try:
            change(*arguments)
        except OSError as error:
            print(error)
    status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        if int(status[name], 16):
            print(given["token"], name, status[name])
    if status["NoNewPrivs"].strip() != "1" or status["Seccomp"].strip() != "2":
        print(given["token"], "unlocked")


@hostile("", control="root")
def set_user_bit(given):
    """A program that would run as root: made here, or found."""
    import os
    import shutil
    import subprocess
    import sys

    shutil.copy("/usr/bin/id" if os.path.exists("/usr/bin/id") else sys.executable, "own")
    try:
        os.chown("own", 0, 0)
        os.chmod("own", 0o4755)
        print(given["token"])
    except OSError as error:
        print(error)
    for path in ("/usr/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/bin/ping"):
        if os.path.exists(path):
            try:
                told = subprocess.run([path, "-c", "id"], capture_output=True, text=True, timeout=2, stdin=-3).stdout
            except (OSError, subprocess.TimeoutExpired) as error:
                print(path, error)
                continue
            print(given["token"] * ("uid=0" in told), path)


@hostile("syscalls", control="io_uring")
def io_uring(given):
    """The queue that runs calls past every filter."""
    import ctypes

    if ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(256)) >= 0:
        print(given["token"])


@hostile("syscalls", control="root")
def faulty_calls(given):
    """Programs for the kernel, its counters, keys and page faults, swap, the log, ports: what says if it might."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    attributes = (ctypes.c_uint * 32)(1, 4, 4, 1)
    counter = (ctypes.c_ulong * 16)(1 | 112 << 32)
    calls = {
        "bpf": (321, 0, ctypes.byref((ctypes.c_uint * 32)(2, 4, 4, 1)), 128),
        "perf_event_open": (298, ctypes.byref(counter), 0, -1, -1, 0),
        "keyctl": (250, 0, -3, 1),
        "add_key": (248, b"user", b"hostile", b"x", 1, -1),
        "userfaultfd": (323, 1),
        "fanotify_init": (300, 0, 0),
        "quotactl": (179, 0x80000100, None, 0, None),
        "finit_module": (313, -1, b"", 0),
        "kexec_load": (246, 0, 0, None, 0),
        "syslog": (103, 10, None, 0),
        "swapoff": (168, b"/nowhere"),
        "acct": (163, b"/nowhere"),
        "iopl": (172, 0),
        "adjtimex": (159, ctypes.create_string_buffer(512)),
    }
    for name, (number, *arguments) in calls.items():
        done = libc.syscall(number, *arguments)
        refused = ctypes.get_errno() in (1, 38, 13) if done < 0 else False
        print(given["token"] * (done >= 0 or not refused), name, done, ctypes.get_errno(), len(attributes))


@hostile("files", control="root")
def kernel_settings(given):
    """The kernel's settings, written as they are, and its control groups."""
    import os

    for path in ("/proc/sys/kernel/pid_max", "/proc/sys/vm/overcommit_memory"):
        try:
            text = open(path).read()
            open(path, "w").write(text)
            print(given["token"], path)
        except OSError as error:
            print(path, error)
    try:
        os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
        print(given["token"], "sysrq")
    except OSError as error:
        print(error)
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"):
        try:
            os.mkdir(f"{folder}/hostile")
            os.rmdir(f"{folder}/hostile")
            print(given["token"], folder)
        except OSError as error:
            print(error)


@hostile("syscalls", control="root")
def name_and_clock(given):
    """The machine's name, and its clock."""
    import socket
    import time

    for change in (
        lambda: socket.sethostname(socket.gethostname() if given["bare"] else "hostile"),
        lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() if given["bare"] else 0.0),
    ):
        try:
            change()
            print(given["token"])
        except OSError as error:
            print(error)


@hostile("syscalls", control="root")
def type_for_others(given):
    """Letters into a terminal, as if somebody had typed them."""
    import fcntl
    import os

    terminals = [0, 1, 2]
    try:
        terminals += os.openpty()
    except OSError as error:
        print(error)
    for terminal in terminals:
        try:
            fcntl.ioctl(terminal, 0x5412, b"x")
            print(given["token"])
        except OSError as error:
            print(error)


@hostile("", control="root")
def real_time_priority(given):
    """Before everybody else on the processors."""
    import os

    attempts = (
        lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        lambda: os.setpriority(os.PRIO_USER, 0, -5),
    )
    for attempt in attempts[: 1 if given["bare"] else 3]:
        try:
            attempt()
            print(given["token"])
        except OSError as error:
            print(error)


def killed_by_filter(result: Result) -> str:
    """SIGSYS in the child is seen by its parent, which prints it; nothing came back from the call."""
    return "" if "signal 31" in result.stdout else f"not killed for it: {result.stdout!r}"


@hostile("syscalls", control="old_calls", check=killed_by_filter)
def calls_of_other_machines(given):
    """The calls of 32-bit programs, whose numbers mean something else and pass a filter that knows one list only."""
    import ctypes
    import mmap
    import os
    import platform

    if platform.machine() != "x86_64":
        raise SystemExit("signal 31 (no such calls on this machine)")
    for code in (b"\xb8\x14\x00\x00\x00\xcd\x80\xc3", b"\xb8\x27\x00\x00\x40\x0f\x05\xc3"):
        pid = os.fork()
        if not pid:
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            page.write(code)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid() or given["bare"]:
                print(given["token"], flush=True)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        print("signal", os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)
