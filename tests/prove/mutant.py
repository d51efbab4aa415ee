"""Runs tests on the source with one line of it changed, each in a process of its own; nothing on disk is changed.

It reads a job a line from standard input and answers with a line: the status of pytest, and what it printed last. What
takes long to import and is not ours is imported once, and the processes are forks of that.
"""

import importlib.machinery
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

DEADLINE = 120.0
IMPORTED = ("pytest", "torch", "transformers.models.qwen3.modeling_qwen3", "gymnasium", "pydantic", "tyro", "rich")


class Mutation:
    """Finds one module, and loads it from a changed text."""

    def __init__(self, file: str, old: str, new: str) -> None:
        self.module = "palaestra." + file.removesuffix(".py").removeprefix("palaestra/").replace("/", ".")
        self.text = Path(file).read_text(encoding="utf-8").replace(old, new)

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        text = self.text

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname):
                return compile(text, self.path, "exec", dont_inherit=True)

        spec.loader = Loader(name, spec.origin)
        return spec


def work(job: dict, output: int) -> None:
    """Be the process of one job."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if job["old"]:
        sys.meta_path.insert(0, Mutation(job["file"], job["old"], job["new"]))
    import pytest

    status = pytest.main([*job["nodes"], "-q", "-x", "-p", "no:cacheprovider", "--tb=line"])
    sys.stdout.flush()
    os._exit(int(status))


def served(job: dict) -> dict:
    """The status of a job, -1 where it took too long, and its last words."""
    with tempfile.TemporaryFile() as output:
        child, until = os.fork(), time.monotonic() + DEADLINE
        if not child:
            os.setpgid(0, 0)
            work(job, output.fileno())
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(0.02)
        if done[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
        output.seek(0)
        said = output.read()[-3000:].decode(errors="replace")
    return {"status": -1 if done[0] == 0 else os.waitstatus_to_exitcode(done[1]), "said": said}


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Plugins would warn that what they rewrite is imported.
    for name in IMPORTED:
        import_module(name)
    assert not any(name.partition(".")[0] == "palaestra" for name in sys.modules), "ours must be imported anew"
    for line in sys.stdin:
        print(json.dumps(served(json.loads(line))), flush=True)
