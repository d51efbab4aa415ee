"""Starts the supervisor's process, connects streams to it, and ends it. `framed` defines the sessions."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.envs.sandboxes.framed import first_words
from palaestra.envs.sandboxes.streams import SocketStream
from palaestra.errors import Broken

OPENING_SECONDS = 60.0
CLOSING_SECONDS = 10.0
_RUNNER = Path(__file__).parent / "runner"
_REASON_BYTES = 2000


class SupervisorProcess:
    """The supervisor's process, and the socket over which sessions are opened."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._lock = threading.Lock()
        self._log = os.memfd_create("palaestra-supervisor", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._log)  # not before: another thread may still call `why`
        self._control, far = socket.socketpair()
        try:
            self._process = _spawn(settings, far.fileno(), self._log)
        except BaseException:
            self._control.close()
            raise
        finally:
            far.close()
        try:
            self.capabilities = first_words(SocketStream(self._control, self.why), "local", OPENING_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def connect(self) -> SocketStream:
        """Return a new stream, for a session or for one-shot runs."""
        near, far = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._control, [b"+"], [far.fileno()])
        except OSError:
            near.close()
            raise Broken(f"the sandbox's supervisor is gone: {self.why()}") from None
        finally:
            far.close()
        return SocketStream(near, self.why, self.connect)

    def why(self) -> str:
        """Return whether the supervisor runs or how it ended, with its last error output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        start = max(os.fstat(self._log).st_size - _REASON_BYTES, 0)
        error_text = os.pread(self._log, _REASON_BYTES, start).decode(errors="replace").strip()
        code = self._process.returncode
        status = "it is running" if code is None else f"it ended with {code}"
        return f"{status}; {error_text}" if error_text else status

    def close(self) -> None:
        """Close the control socket, which ends the supervisor and every process that it started."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Forget the supervisor in a forked child process, without ending it: it belongs to the parent."""
        self._control.close()
        self._process.returncode = 0  # otherwise its garbage collection warns that it still runs


def _spawn(settings: Mapping[str, Any], control: int, log: int) -> "subprocess.Popen[bytes]":
    """Start a supervisor that inherits only the control socket from this process."""
    interpreter = os.path.realpath(sys.executable)
    words = [interpreter, "-I", "-S", str(_RUNNER), "supervisor", json.dumps({**settings, "control": control})]
    return subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        pass_fds=(control,),
        env={"LANG": "C.UTF-8", "PATH": os.defpath},
        cwd="/",
        start_new_session=True,
    )
