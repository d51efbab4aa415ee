"""The same programs without a sandbox: each must get its way, or its failing inside one would say nothing.

They run as root, or as a user that nobody is, in an empty folder, below a process that collects whatever they leave.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

from .becoming import USER, open_the_way
from .judging import descendants
from .program import Program
from .setting import Setting

_SUBREAPER = 36
_LONGEST = 120.0
"""Seconds that a program may take to get its way, on a machine that is busy with others."""


def gets_through(program: Program) -> str:
    """Nothing where it got its way, else what it said. Called in a process of its own, as root."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    user = 0 if program.control == "root" else USER
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with Setting(bare=True) as setting, tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        os.chown(folder, user, user)
        victim = subprocess.Popen(["sleep", "1000"], user=user, group=user, extra_groups=[])
        given = setting.given | {"victim": victim.pid}
        with open(setting.folder / "said", "w+b") as said:
            words = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-I", "-c", program.code(given)]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=folder, user=user, group=user,
                extra_groups=[], start_new_session=True, pass_fds=[setting.descriptor],
                env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},  # where no name server answers
            )  # fmt: skip
            try:
                return _outcome(program, setting, process, victim, said.fileno())
            finally:
                _end(victim)


def _outcome(
    program: Program, setting: Setting, process: "subprocess.Popen[bytes]", victim: "subprocess.Popen[bytes]", said: int
) -> str:
    if program.control == "outlives":
        if not _soon(setting.left_running):
            return "it has not begun"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.2)
        time.sleep(0.2)
        return "" if setting.left_running() else "it was over in time, and nothing of it was left"
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LONGEST)

    def won() -> bool:
        if program.control == "crashes":
            return (process.returncode or 0) > 128
        text = _printed(said)
        killed = program.name == "kill_all" and victim.poll() is not None
        return setting.token.encode() in text or setting.secret.encode() in text or killed

    if _soon(won, 20.0):  # what it started may print after its end
        return ""
    return f"it ended with {process.returncode}: {_printed(said)[-1500:].decode(errors='replace')}"


def _printed(said: int) -> bytes:
    """The beginning of what was printed, and its end."""
    return os.pread(said, 2**20, 0) + os.pread(said, 2**20, max(os.fstat(said).st_size - 2**20, 0))


def _soon(holds: Callable[[], object], seconds: float = _LONGEST) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _end(victim: "subprocess.Popen[bytes]") -> None:
    """Kill all that has come of us."""
    victim.kill()
    victim.wait()
    until = time.monotonic() + 60
    while left := descendants(os.getpid()):
        assert time.monotonic() < until, left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def main() -> None:
    """`python -m hostile.bare`: a line in is a name, a line out is a complaint."""
    from .families import PROGRAMS

    with tempfile.TemporaryDirectory(prefix="hostile-home-", dir="/tmp") as home:
        os.chmod(home, 0o755)
        os.environ["HOME"] = home
        open_the_way()
        for line in sys.stdin:
            inner, outer = os.pipe()
            if not os.fork():
                os.close(inner)
                try:
                    complaint = gets_through(PROGRAMS[line.strip()])
                except Exception:  # Told to the test.
                    complaint = traceback.format_exc()
                os.write(outer, json.dumps(complaint).encode())
                os._exit(0)
            os.close(outer)
            with open(inner, "rb") as told:
                print(told.read().decode(), flush=True)
            os.wait()


if __name__ == "__main__":
    main()
