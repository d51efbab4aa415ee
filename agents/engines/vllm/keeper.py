"""Run a command in a new session, and kill all processes of that session when the command or the parent process ends.

Without this, vLLM's worker processes would continue after their server was killed. This file is started as a script,
`python keeper.py PARENT COMMAND...` with the parent's process id, and uses only the standard library.
"""

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the command until it ends or the parent process ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: _end_without(parent))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:  # The parent ended before the line above.
        return
    subprocess.Popen(command).wait()
    _end()


def _end_without(parent: int) -> None:
    """End if the parent process has ended: Linux signals the end of the thread that started this process too."""
    if os.getppid() != parent:
        _end()


def _end(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
