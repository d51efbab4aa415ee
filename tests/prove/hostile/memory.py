"""More memory and more files than the session may have, in every place where they can be kept."""

from palaestra.envs.sandboxes import Result

from .program import hostile


def stopped_for_memory(result: Result) -> str:
    """The program could not have it, or was killed for it."""
    stopped = result.oom or "MemoryError" in result.stderr or result.limit_hit == "memory"
    return "" if stopped else f"neither MemoryError nor killed for memory: {result}"


def killed_for_memory(result: Result) -> str:
    """Each process had its share, so that somebody had to count them all."""
    return "" if result.oom or result.limit_hit == "memory" else f"not killed for memory: {result}"


@hostile("memory", check=stopped_for_memory)
def memory_of_one(given):
    """A gigabyte in one piece, all of it used."""
    data = bytearray(2**30)
    for at in range(0, len(data), 4096):
        data[at] = 1
    print(given["token"])


@hostile("memory", check=killed_for_memory)
def memory_of_many(given):
    """A gigabyte among four children, each of which has less than it may."""
    import os
    import select
    import time

    inner, outer = os.pipe()
    wait, hold = os.pipe()
    for _ in range(4):
        if not os.fork():
            os.close(hold)
            data = bytearray(300 * 2**20)
            for at in range(0, len(data), 4096):
                data[at] = 1
            os.write(outer, b"x")
            os.read(wait, 1)  # until the parent has seen all of them, or is gone
            os._exit(0)
    ready = 0
    while ready < 4 and not os.waitpid(-1, os.WNOHANG)[0]:
        if select.select([inner], [], [], 0.05)[0]:
            ready += len(os.read(inner, 4))
    if ready == 4:
        time.sleep(0 if given["bare"] else 10)  # for whoever only looks now and then
        print(given["token"])
    print("ready", ready)
    os.close(hold)


@hostile("files")
def fill_folders(given):
    """More bytes than the scratch folders hold, in files that are each allowed: here, and in every folder for such."""
    import os
    import shutil

    written = 0
    for folder in (".", "/tmp", "/dev/shm", "/var/tmp", "/run/lock", "/run"):
        place = f"{folder}/{given['mark']}"
        try:
            os.mkdir(place)
            for number in range(60):
                with open(f"{place}/{number}", "wb") as file:
                    written += file.write(bytes(2**21))
        except OSError as error:
            print(folder, error)
        if given["bare"]:
            shutil.rmtree(place, ignore_errors=True)
    print(written)
    if written > 100 * 2**20:
        print(given["token"])


@hostile("files")
def inode_flood(given):
    """Files without content, more than may be."""
    made = 0
    try:
        for number in range(12_000):
            open(f"file{number}", "w").close()
            made += 1
    except OSError as error:
        print(error)
    print(made)
    if made == 12_000:
        print(given["token"])


@hostile("files")
def large_file(given):
    """One file that is larger than a file may be, and one that only says so."""
    with open("sparse", "wb") as file:
        try:
            file.truncate(2**40)
            print(given["token"])
        except OSError as error:
            print(error)
    with open("large", "wb") as file:
        for _ in range(40):
            file.write(bytes(2**20))
    print(given["token"])


@hostile("memory")
def memory_without_a_process(given):
    """A gigabyte in a file that exists in memory alone, which no process has mapped."""
    import os

    held = []
    for _ in range(100):
        file = os.memfd_create("held")
        held.append(file)
        os.write(file, bytes(12 * 2**20))
    print(given["token"])


@hostile("memory", control="root")
def memory_in_pipes_and_sockets(given):
    """Half a gigabyte in the kernel's own buffers."""
    import fcntl
    import os

    total = 0
    for _ in range(1100):
        _, outer = os.pipe()
        fcntl.fcntl(outer, 1031, 2**20)
        os.set_blocking(outer, False)
        total += os.write(outer, bytes(2**20))
    if total > 2**29:
        print(given["token"])


@hostile("memory")
def memory_of_system_v(given):
    """Shared memory that outlives every process."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.shmget(0, ctypes.c_size_t(2**20), 0o1600)
    if made >= 0:
        libc.shmctl(made, 0, None)
        print(given["token"])


@hostile("processes")
def change_limits(given):
    """Its own limits, upwards; those of others, down to nothing."""
    import os
    import resource

    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            which = getattr(resource, name)
            soft, hard = resource.getrlimit(which)
            try:
                if hard != resource.RLIM_INFINITY:
                    resource.setrlimit(which, (soft, resource.RLIM_INFINITY))
                    print(given["token"], name)
            except (OSError, ValueError) as error:
                print(name, error)
    for pid in {given["victim"], os.getppid(), 1} - {0, os.getpid()}:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1))
            print(given["token"], pid)
        except OSError as error:
            print(pid, error)


@hostile("files", control="core_pattern")
def core_file(given):
    """A dead process' memory as a file."""
    import os
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError) as error:
        print(error)
    pid = os.fork()
    if not pid:
        os.abort()
    os.waitpid(pid, 0)
    if any(name.startswith("core") for name in os.listdir(".")):
        print(given["token"])
