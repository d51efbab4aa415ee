"""The program between us and a server that somebody else wrote: when we end, however we end, all that it started does.

Started as a file, by a bare Python: `leash.py PARENT COMMAND...`. Standard input and output are the command's own. What
it says on standard error is kept to its end and told in the end, so that a server that talks a lot fills nothing. The
command's processes end with it, and with us, unless they leave their group. Left out: what is said to the server.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import IO

_PR_SET_PDEATHSIG = 1
TOLD_BYTES = 2000


def main() -> None:
    """Run the command until it ends, or our parent does."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    signal.signal(signal.SIGTERM, lambda *_: end_all())
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # It died before the line above.
        return
    try:
        child = subprocess.Popen(command, stderr=subprocess.PIPE)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # The child's alone, or its end would not be seen.
        os.dup2(nothing, descriptor)
    said = bytearray()
    assert child.stderr is not None
    listener = threading.Thread(target=listen, args=(child.stderr, said), daemon=True)
    listener.start()
    status = child.wait()
    listener.join(0.5)
    last = bytes(said).decode(errors="replace").strip()
    os.write(2, f"it ended with status {status}; {last}\n".encode())
    end_all()


def listen(stream: IO[bytes], said: bytearray) -> None:
    """Keep the last of what is said."""
    while part := os.read(stream.fileno(), 2**16):
        said += part
        del said[:-TOLD_BYTES]


def end_all() -> None:
    """End the group: the command, what it started, and this program."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
