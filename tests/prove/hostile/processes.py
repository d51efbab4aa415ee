"""Processes: too many, too long, out of reach, and those of others."""

from palaestra.envs.sandboxes import Result

from .program import hostile


def counted(result: Result) -> str:
    """It has come to an end of them, and said how many there were."""
    said = any(line.startswith("alive") for line in result.stdout.splitlines())
    return "" if said else f"it said {result.stdout!r}; expected a line `alive N`"


@hostile("process_count", check=counted)
def fork_many(given):
    """Two hundred children that stay."""
    import os
    import time

    alive = 0
    for _ in range(200):
        try:
            pid = os.fork()
        except OSError as error:
            print(error)
            break
        if not pid:
            time.sleep(600)
            os._exit(0)
        alive += 1
    print("alive", alive, flush=True)
    if alive > given["processes"]:
        print(given["token"], flush=True)


@hostile("process_count", check=counted)
def thread_many(given):
    """Two hundred threads that stay."""
    import threading
    import time

    alive = 0
    for _ in range(200):
        try:
            threading.Thread(target=time.sleep, args=(600.0,), daemon=True).start()
        except RuntimeError as error:
            print(error)
            break
        alive += 1
    print("alive", alive, flush=True)
    if alive > given["processes"]:
        print(given["token"], flush=True)


@hostile("process_count", control="outlives", seconds=1.5, expected={"timed_out": True})
def fork_bomb(given):
    """Children that have children, as long as it lasts."""
    import os

    for _ in range(4 if given["bare"] else 10**9):
        try:
            os.fork()
        except OSError:
            continue
    while True:
        pass


@hostile("processes", control="outlives", expected={"exit_code": 0, "timed_out": False})
def daemons(given):
    """Children in sessions of their own that go on when the program has ended: one holds the output, so that whoever
    reads it to its end waits; one has closed it; one is deaf to all signals, and busy.
    """
    import os
    import signal
    import time

    for kind in ("holds", "closed", "deaf"):
        if os.fork():
            continue
        os.setsid()
        if os.fork():
            os._exit(0)
        if kind == "closed":
            os.closerange(0, 3)
        for number in signal.valid_signals() if kind == "deaf" else ():
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                continue
        while kind == "deaf":
            pass
        time.sleep(600)
    os._exit(0)


@hostile("processes", control="user", check=lambda result: "" if "left 20" in result.stdout else "it did not end")
def zombies(given):
    """Children that nobody waits for."""
    import os

    for _ in range(20):
        if not os.fork():
            os._exit(0)
    print("left 20", given["token"] * given["bare"])


@hostile("processes")
def kill_all(given):
    """Everything that may be killed."""
    import os
    import signal

    try:
        os.kill(-1, signal.SIGKILL)
    except OSError as error:
        print(error)
    for pid in range(2, 4096):
        try:
            if pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
    try:
        os.kill(given["victim"], 0)
    except ProcessLookupError:
        if given["bare"]:
            print(given["token"])
    except PermissionError:
        pass


@hostile("processes")
def signal_parent(given):
    """Whoever started it."""
    import os
    import signal
    import time

    parent = os.getppid()
    for pid in (parent, 1):
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            try:
                if pid > 0 and not (given["bare"] and pid == 1):
                    os.kill(pid, number)
            except OSError as error:
                print(error)
    latest = time.monotonic() + (60 if given["bare"] else 0.2)
    while os.getppid() == parent and time.monotonic() < latest:
        time.sleep(0.01)
    if given["bare"] and os.getppid() != parent:
        print(given["token"])


@hostile("syscalls")
def ptrace_others(given):
    """Another process' memory and registers, by the debugger's call."""
    import ctypes
    import os
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    for pid in (child, os.getppid(), 1):
        if pid > 0 and libc.ptrace(0x4206, pid, 0, 0) == 0:
            print(given["token"], pid)
    os.kill(child, 9)


@hostile("syscalls")
def read_memory_of_others(given):
    """Another process' memory, by the call that copies it."""
    import ctypes
    import os
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    data = ctypes.create_string_buffer(8)
    place = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    for pid in (child, os.getppid(), 1):
        if pid > 0 and libc.process_vm_readv(pid, place, 1, place, 1, 0) == 8:
            print(given["token"], pid)
    os.kill(child, 9)


@hostile("files")
def shell(given):
    """Programs of the system, by a shell."""
    import subprocess

    command = f"cat {given['tmp_secret']} {given['home_secret']}; ls -la /root /home /tmp"
    print(subprocess.run(command, shell=True, capture_output=True, text=True))
