"""Wrapper process around an external server: when our process ends for any reason, all that the server started ends.

It is started as a file, and imports only the standard library: `leash.py PARENT COMMAND...`; PARENT is our process id.
The command uses the wrapper's standard input and output. Our standard error is a file, which always holds the end of
what the command wrote to its own, so a long log fills neither a pipe nor the file. The command's processes end when it
or our process ends, unless they leave their process group. Left out: the messages to the server.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import IO

_PR_SET_PDEATHSIG = 1
TOLD_BYTES = 1000
writing = threading.Lock()
"""Held while the file is written."""


def main() -> None:
    """Run the command until it or our parent ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    tail = bytearray()

    def stopped(*_: object) -> None:
        end_all()

    signal.signal(signal.SIGTERM, stopped)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # The parent died before the line above.
        return
    try:
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # Only the child may hold them, or its end would not be seen.
        os.dup2(nothing, descriptor)
    assert child.stderr is not None
    listener = threading.Thread(target=listen, args=(child.stderr, tail), daemon=True)
    listener.start()
    status = child.wait()
    listener.join(0.5)
    writing.acquire()  # It is never released: output of processes that are left must not replace the last words.
    last = bytes(tail).decode(errors="replace").strip()
    write("\n".join(filter(None, (f"it ended with status {status}", last))).encode())
    end_all()


def listen(stream: IO[bytes], tail: bytearray) -> None:
    """Keep the last bytes of the stream."""
    while part := os.read(stream.fileno(), 2**16):
        with writing:
            tail += part
            del tail[:-TOLD_BYTES]
            write(tail)


def write(text: bytes | bytearray) -> None:
    """Replace the content of the file that is our standard error."""
    os.ftruncate(2, 0)
    os.pwrite(2, text, 0)


def end_all() -> None:
    """Kill the process group: the command, all that it started, and this program."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
