"""The helper process behind `process_python`: forks twice for every program, and reports how it went.

    server   a bare interpreter; takes one socket per call from its parent and forks a keeper for it
    keeper   reads the program, forks it, watches clock and output, kills what is left, writes the report
    program  the agent's code, under limits; holds no socket of ours

A report is written by the keeper alone, so a program can print whatever it likes and forge nothing. This file runs
as a script of a fresh interpreter and imports the standard library only. It is not a sandbox: see `process_python`.
"""

import ctypes
import gc
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback

HEADER = struct.Struct("<dQQQQ")
"""With each call's socket: seconds, memory bytes, processes, file bytes, output bytes kept at each end."""
REPORT = struct.Struct("<ciQII")
"""Kind (E exited, T timed out, F no process), wait status or errno, output size, bytes of head and tail that follow."""
LENGTH = struct.Struct("<I")
STARTED = b"S"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_PR_SET_KEEPCAPS = 8
_CAPABILITY_VERSION = 0x20080522
_READING_RIGHTS = (2, 1)
"""CAP_DAC_READ_SEARCH; in containers that lack it, CAP_DAC_OVERRIDE."""
_FIRST_UID = 1_900_000_000
_OPEN_FILES = 64
_libc = ctypes.CDLL(None, use_errno=True)


def serve(control: socket.socket) -> None:
    """Fork a keeper for every socket that comes, until the parent is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps keepers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business; we end with its socket.
    drop = os.getuid() == 0
    private = drop and not _library_is_public()
    number = 0
    _warm()
    gc.collect()
    gc.freeze()
    while True:
        header, descriptors, _, _ = socket.recv_fds(control, HEADER.size, 1)
        if not header:
            return
        number += 1
        try:
            keeper = os.fork()
        except OSError as error:
            os.write(descriptors[0], b"F" + LENGTH.pack(error.errno or 0))
            keeper = -1
        if keeper == 0:
            try:
                control.close()
                uid = _FIRST_UID + (os.getppid() * 4099 + number) % 10_000_000 if drop else None
                _keep(socket.socket(fileno=descriptors[0]), HEADER.unpack(header), uid, private)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _warm() -> None:
    """Compile, run and report an error once: what is set up here, every program finds ready."""
    for code in ("print(end='')", "def f(x): return [y for y in x]\nf((1 + 2, 3 * 4))"):
        exec(compile(code, "<python>", "exec"), {})
    try:
        compile("(", "<python>", "exec")
    except SyntaxError as error:
        traceback.format_exception(error)


def _library_is_public() -> bool:
    """True when another user may read the interpreter and its library."""
    for path in {os.path.realpath(os.__file__), os.path.realpath(sys.executable)}:
        while path != "/":
            if not os.stat(path).st_mode & (stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH):
                return False
            path = os.path.dirname(path)
    return True


def _keep(call: socket.socket, limits: "tuple[float, int, int, int, int]", uid: "int | None", private: bool) -> None:
    """Look after one program from its fork to its report."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    seconds, _, _, _, room = limits
    code = _read(call, LENGTH.unpack(_read(call, LENGTH.size))[0])
    # Whatever escapes the program's process group comes back to us as our child.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    call.sendall(STARTED)  # Nothing of the agent's has run before this byte, and a failure after it is the agent's.
    reading, writing = os.pipe()
    deadline = time.monotonic() + seconds
    try:
        program = os.fork()
    except OSError as error:
        call.sendall(REPORT.pack(b"F", error.errno or 0, 0, 0, 0))
        return
    if program == 0:
        try:
            os.close(reading)
            call.close()
            _become_program(code, writing, limits, uid, private)
        finally:
            os._exit(1)
    os.close(writing)
    output = _Output(room)
    timed_out = _watch(program, reading, call, deadline, output)
    try:
        os.killpg(program, signal.SIGKILL)  # Before the wait: the number is still its own.
    except OSError:
        os.kill(program, signal.SIGKILL)  # It was stopped before it had a group.
    _, status = os.waitpid(program, 0)
    _drain(reading, output)
    _reap_the_rest()
    head, tail = bytes(output.head), bytes(output.tail)
    call.sendall(REPORT.pack(b"T" if timed_out else b"E", status, output.size, len(head), len(tail)) + head + tail)


class _Output:
    """The first and the last bytes of what a program writes, and how many there were."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.size = 0
        self.head = bytearray()
        self.tail = bytearray()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        missing = self.room - len(self.head)
        self.head += data[:missing]
        self.tail += data[missing:]
        del self.tail[: max(0, len(self.tail) - self.room)]


def _watch(program: int, reading: int, call: socket.socket, deadline: float, output: _Output) -> bool:
    """Read output until the program exits; True when its time ran out. Ends us when nobody waits for the report."""
    exit_sign = os.pidfd_open(program)
    poller = select.poll()
    poller.register(reading, select.POLLIN)
    poller.register(exit_sign, select.POLLIN)
    poller.register(call, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        for descriptor, _ in poller.poll(left * 1000):
            if descriptor == exit_sign:
                return False
            if descriptor == reading:
                data = os.read(reading, 65536)
                output.add(data)
                if not data:
                    poller.unregister(reading)
            else:  # The caller never writes again, so this is its end of the line.
                return True


def _drain(reading: int, output: _Output) -> None:
    """What the pipe still holds. Bounded: a process that escaped may go on writing."""
    os.set_blocking(reading, False)
    for _ in range(32):
        try:
            data = os.read(reading, 65536)
        except BlockingIOError:
            return
        if not data:
            return
        output.add(data)


def _reap_the_rest() -> None:
    """Kill what the program left behind, which the kernel has made our children. Bounded to two seconds."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        time.sleep(0.001)


def _become_program(
    code: bytes, writing: int, limits: "tuple[float, int, int, int, int]", uid: "int | None", private: bool
) -> None:
    """Give up what the keeper has, take the limits, run the code. Never returns."""
    seconds, memory, processes, file_bytes, _ = limits
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.closerange(3, 1024)
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if uid is not None:
        _change_user(uid, private)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    keeper = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # After the change of user, which clears it.
    if os.getppid() != keeper or keeper == 1:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os._exit(_execute(code))


def _change_user(uid: int, private: bool) -> None:
    """A user of its own for every program: it can signal nobody else, and counts its own processes only.

    Where only root may read Python's library (`private`), the program keeps the right to read, and no other.
    """
    if private:
        _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    for number in (uid, 65534):  # The second where a container maps few ids.
        try:
            os.setgroups([])
            os.setresgid(number, number, number)
            os.setresuid(number, number, number)
            break
        except OSError:
            continue
    if private:
        for right in _READING_RIGHTS:
            header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
            rights = struct.pack("<6I", 1 << right, 1 << right, 0, 0, 0, 0)
            if _libc.capset(header, rights) == 0:
                return


def _execute(code: bytes) -> int:
    """Run the code like a script; its exit status."""
    status = 0
    try:
        sys.argv = ["<python>"]
        program = compile(code, "<python>", "exec", dont_inherit=True)
        exec(program, {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:  # The program's own: it gets its traceback, as from python itself.
        status = 1
        frames = error.__traceback__
        traceback.print_exception(type(error), error, frames.tb_next if frames else None)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # The program may have closed or replaced its streams.
            status = status or 1
    return status & 0xFF


def _read(call: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = call.recv(size - len(data))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


if __name__ == "__main__":
    serve(socket.socket(fileno=0))
