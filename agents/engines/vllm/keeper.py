"""Runs a command in a session of its own, and kills all of that session when the command or our parent ends.

vLLM's worker processes outlive a server that is killed. Started as a file: `python keeper.py PARENT COMMAND...`.
Standard library only.
"""

import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the command until it or the parent ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # The parent ended before the line above.
        return
    subprocess.Popen(command).wait()
    _end()


def _end(*_: Any) -> None:
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
