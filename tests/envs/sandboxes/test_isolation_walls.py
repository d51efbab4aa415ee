"""The walls, met by hostile programs in real sessions: as root, as an ordinary user, and in a container's mode.

Every program prints WON if it got through. The long list that judges a whole sandbox is among the proofs; here is what
the cell alone must hold. Each mode runs all its programs in one zygote.
"""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from palaestra.envs.sandboxes.runner import cgroups, landlock, probe, syscalls

PLACE = Path(__file__).with_name("isolation_place.py")
REPOSITORY = PLACE.parents[3]
NOBODY = 54_321  # a user that nothing else here is
LIMITS = {"cpu_seconds": 20, "memory_bytes": 192 << 20, "processes": 12, "file_bytes": 4 << 20, "open_files": 64}
LIMITS |= {"scratch_bytes": 8 << 20, "scratch_files": 64}

TRY = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(attempt, *errors):
    "Print the name of the error; WON where there is none."
    try: attempt()
    except OSError as error: print(errno.errorcode[error.errno])
    else: print("WON", attempt)
def call(number, *words):
    def attempt():
        if libc.syscall(*[ctypes.c_long(word) for word in (number, *words)]) == -1:
            raise OSError(ctypes.get_errno(), "")
    return attempt
"""
NAMES = ("unshare", "setns", "mount", "umount2", "pivot_root", "fsopen", "open_tree", "move_mount", "ptrace", "bpf")
NAMES += ("perf_event_open", "keyctl", "add_key", "io_uring_setup", "userfaultfd", "process_vm_readv", "shmget")
NAMES += ("memfd_secret", "init_module", "kexec_load", "reboot", "open_by_handle_at", "seccomp", "clone3")
HEAD = f"""
NUMBERS = {[syscalls.number(name) for name in NAMES]}
CLONE = {syscalls.number("clone")}
REPOSITORY = {str(REPOSITORY)!r}
{TRY}"""
HOSTILE = {
    "write to the system, the library, and devices": """
for path in ("/x", "/usr/x", "/etc/passwd", "/dev/x", "/opt/x", os.__file__, os.path.dirname(os.__file__) + "/x"):
    refused(lambda: open(path, "ab"))
""",
    "turn knobs in proc": """
for path in ("self/oom_score_adj", "self/comm", "sys/kernel/hostname", "sysrq-trigger", "self/uid_map", "1/mem"):
    refused(lambda: open("/proc/" + path, "r+b"))
""",
    "find the host's files": """
absent = ["/etc/shadow", "/home", "/var", "/run", "/sys", "/boot", "/proc/kcore", "/proc/kmsg", "/proc/keys"]
absent += ["/dev/kmsg", "/dev/mem", "/dev/kvm", "/dev/fuse", "/dev/nvidia0", "/dev/vda", "/proc/1/root/home"]
for path in [*absent, REPOSITORY]: refused(lambda: os.stat(path))
""",
    "open other sockets": """
for family, kind in ((2, 1), (2, 2), (10, 1), (16, 3), (17, 3), (38, 5), (40, 1)):
    refused(lambda: socket.socket(family, kind))
""",
    "make namespaces, mounts, and roots": """
for number in NUMBERS: refused(call(number))
refused(call(CLONE, 0x10000000 | 17, 0, 0, 0, 0))
refused(lambda: os.chroot("/tmp"))
""",
    "become someone else": """
refused(lambda: os.setuid(0)); refused(lambda: os.setgid(0)); refused(lambda: os.setgroups([0]))
""",
    "make devices": """
for device in (os.makedev(1, 1), os.makedev(1, 11), os.makedev(254, 0)):
    refused(lambda: os.mknod("/tmp/disk", 0o060666, device))
""",
    "raise limits and priority": """
import resource
for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU", "CORE", "MEMLOCK"):
    try: resource.setrlimit(getattr(resource, "RLIMIT_" + name), (resource.RLIM_INFINITY,) * 2)
    except (OSError, ValueError): print("EPERM")
    else: print("WON", name)
refused(lambda: os.nice(-1)); refused(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
""",
    "fill the disk": """
def fill():
    for number in range(10):
        with open(f"/tmp/{number}", "wb", buffering=0) as file: file.write(bytes(4 << 20))
def litter():
    for number in range(100): open(f"litter{number}", "x").close()
refused(fill); refused(litter)
refused(lambda: open("/dev/shm/big", "wb").truncate(1 << 30))
""",
    "fork without end": """
import signal
def bomb():
    for _ in range(100):
        if os.fork() == 0: signal.pause()
refused(bomb)
""",
    "set the clock and the name": """
import time
refused(lambda: time.clock_settime(time.CLOCK_REALTIME, 1)); refused(lambda: socket.sethostname("x"))
""",
}
REVEALING = {
    "descriptors": "import os; print(sorted(set(os.listdir('/proc/self/fd')) - {'0', '1', '2'}))",
    "processes": "import os; print([name for name in os.listdir('/proc') if name.isdigit()], os.getpid())",
    "environment": """
import os
print(sorted(os.environ), [b"TELLTALE" in open(f"/proc/{pid}/environ", "rb").read() for pid in ("self", 1)])""",
    "status": "print(open('/proc/self/status').read())",
    "mounts": "print(open('/proc/self/mountinfo').read())",
    "memory": "try: bytearray(1 << 30)\nexcept MemoryError: print('MemoryError')",
    "folders": "import os; print(os.getcwd(), os.listdir(), os.listdir('/tmp'), os.listdir('/dev/shm'))",
}
USEFUL = """
import multiprocessing, socket, subprocess, sys, tempfile
from multiprocessing import shared_memory
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=queue.put, args=("from a child",))
child.start(); print(queue.get(timeout=90)); child.join()
block = shared_memory.SharedMemory(create=True, size=64); block.close(); block.unlink()
one, other = socket.socketpair(); one.send(b"pair"); print(other.recv(4))
with tempfile.NamedTemporaryFile(dir=".") as file: file.write(b"x")
open("/dev/stdout", "w").write("through /dev/stdout\\n"); open("/dev/null", "w").write("x")
print(subprocess.run("echo shell $((6*7))", shell=True, capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-c", "print('python', 6*7)"], capture_output=True, text=True).stdout)
"""
CASES = {"root": {}, "user": {}, "ordinary user": {"user": NOBODY, "group": NOBODY, "extra_groups": []}}


@functools.cache
def outcomes(case: str) -> dict[str, dict]:
    """What all programs came to in a case; skipped where the case cannot be had."""
    mode = case.partition(" ")[2] or case
    python = sys.executable
    if case != "user" and os.geteuid() != 0:
        pytest.skip("only root can be root, or choose to be someone else")
    if case == "ordinary user":
        python = "/usr/bin/python3"  # the one that runs this may be where only root can read
        if not os.access(python, os.X_OK) or not os.stat(PLACE).st_mode & 0o004:
            pytest.skip("no interpreter that an ordinary user can run")
    else:
        try:
            probe.capabilities(mode)
        except syscalls.Unavailable as error:
            pytest.skip(str(error))
    programs = {name: HEAD + text for name, text in HOSTILE.items()} | REVEALING | {"useful": USEFUL}
    settings = {"mode": mode, "owner": os.getpid(), "memory_tree": False}
    return dict(zip(programs, place(python, settings, list(programs.values()), **CASES[case]), strict=True))


def place(python: str, settings: dict, programs: list[str], **who) -> list[dict]:
    request = json.dumps({"settings": settings, "limits": LIMITS, "programs": programs})
    who |= {"env": {"TELLTALE": "TELLTALE"}, "timeout": 300}  # for all of a case's programs
    answer = subprocess.run([python, "-I", "-S", PLACE], input=request, capture_output=True, text=True, **who)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_program_is_refused(case, name):
    if (case, name) == ("user", "fork without end") and os.geteuid() == 0:
        pytest.skip("the kernel does not count root's processes: there a control group must")
    found = outcomes(case)[name]
    assert found["status"] == 0 and found["text"], found
    assert "WON" not in found["text"], found["text"]


@pytest.mark.parametrize("case", CASES)
def test_a_program_sees_nothing_but_its_own(case):
    found = {name: outcome["text"] for name, outcome in outcomes(case).items()}
    assert found["descriptors"].strip() == "['3']"  # the one that lists them
    assert found["processes"].strip() == "['1'] 1"
    assert "[False, False]" in found["environment"] and "TELLTALE" not in found["environment"]
    assert found["folders"].strip() == "/work/0 [] [] []"
    status = dict(line.partition(":\t")[::2] for line in found["status"].splitlines())
    assert {status[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
    assert "0" not in status["Uid"].split()
    assert found["memory"].strip() == "MemoryError"
    for line in found["mounts"].strip().splitlines():  # Landlock would hide a mount that can be written
        where, options = line.split()[4:6]
        assert where in ("/proc", "/work") or where.startswith("/dev/") or {"ro", "nosuid"} <= set(options.split(","))


@pytest.mark.parametrize("case", CASES)
def test_what_honest_programs_need_is_there(case):
    text = outcomes(case)["useful"]["text"]
    for line in ("from a child", "b'pair'", "through /dev/stdout", "shell 42", "python 42"):
        assert line in text


def test_in_a_container_the_filter_and_landlock_hold_without_namespaces():
    """The container is the wall round them; this is what is added inside. /tmp is not theirs, the scratch is."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    python = "/usr/bin/python3" if os.geteuid() == 0 else sys.executable
    if not landlock.version() or not os.access(python, os.X_OK):
        pytest.skip("no Landlock, or no interpreter that an ordinary user can run")
    names = ["write to the system, the library, and devices", "open other sockets", "become someone else"]
    names += ["make namespaces, mounts, and roots", "make devices"]
    own = "open('here', 'w').close(); refused(lambda: open('/tmp/palaestra-trial', 'w')); print(os.listdir())"
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        os.chown(scratch, user, -1)
        Path(scratch, "of the run before").touch()
        settings = {"mode": "container", "scratch": scratch}
        programs = [HEAD + HOSTILE[name].replace("/tmp/", "") for name in names] + [HEAD + own]
        answer = place(python, settings, programs, **(CASES["ordinary user"] if os.geteuid() == 0 else {}))
    assert "WON" not in str(answer)
    assert answer[-1]["text"].split() == ["EACCES", "['here']"]


def test_foreign_processors_and_x32_kill():
    """Not refused but ended: nobody calls them by mistake."""
    ask = f"import ctypes; ctypes.CDLL(None).syscall(ctypes.c_long({0x40000000 | 39})); print('WON')"
    (found,) = place(sys.executable, {"mode": probe.best_mode(), "owner": os.getpid()}, [ask])
    assert found == {"text": "", "status": -31}


def test_the_probe_names_what_a_machine_lacks(monkeypatch):
    assert probe.best_mode() == ("root" if os.geteuid() == 0 else "user")
    found = probe.capabilities(probe.best_mode())
    probe._tried.cache_clear()
    assert all(found[name] for name in ("files", "network", "processes", "process_count", "syscalls", "forks"))
    try:
        cgroups.find().close()
        memory = "tree"
    except syscalls.Unavailable:
        memory = "watched"
    assert found["memory"] == memory
    assert found["own_user"] == (os.geteuid() == 0)
    monkeypatch.setattr(
        probe.cell.kernel, "unshare", lambda flags: (_ for _ in ()).throw(PermissionError(1, "unshare"))
    )
    with pytest.raises(syscalls.Unavailable, match=r"ordinary user: PermissionError.*docker or the remote"):
        probe.best_mode()
