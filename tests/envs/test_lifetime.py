"""What lives as long as our process is closed when it ends, whatever fails, and forgotten by a child."""

import subprocess
import sys

PROGRAM = """
import os
from palaestra.envs.running.lifetime import close_at_exit

class Thing:
    def __init__(self, name):
        self.name = name
        close_at_exit(self)
    def close(self):
        print("closed", self.name, flush=True)
        if self.name == "failing":
            raise RuntimeError("it cannot be closed")
    def forget(self):
        print("forgotten", self.name, flush=True)

kept = [Thing("one"), Thing("failing"), Thing("two")]
Thing("dropped")
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_all_that_is_held_is_closed_at_exit_also_after_one_that_fails_and_forgotten_by_a_child():
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={}, capture_output=True, text=True, timeout=300)
    whose = [f"{end} {name}" for end in ("closed", "forgotten") for name in ("failing", "one", "two")]
    assert sorted(done.stdout.split("\n")[:-1]) == whose
