"""The wrapper of servers keeps the last words of its server."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from palaestra.envs.running import leash

SLOWLY = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
import leash
end_all = leash.end_all
leash.end_all = lambda: (time.sleep(0.3), end_all())
leash.main()
"""


def test_a_grandchild_that_writes_on_does_not_replace_the_last_words():
    command = ["sh", "-c", "(while :; do echo on; done >&2) & echo gone >&2; exit 3"]
    words = [sys.executable, "-I", "-S", "-c", SLOWLY, str(Path(leash.__file__).parent), str(os.getpid()), *command]
    with tempfile.TemporaryFile() as told:
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told, timeout=300)
        assert os.pread(told.fileno(), 100, 0).startswith(b"it ended with status 3\n")
