"""The reference of `make bench-sandbox`: `python -c` in a bare subprocess, without isolation."""

import subprocess

from programs import Run, serve_programs


def bare() -> Run:
    """Return a function that runs a program as a simple tool does."""

    def run(source: str) -> str:
        return subprocess.run(["python", "-c", source], capture_output=True, text=True, timeout=60).stdout

    return run


serve_programs((), {"subprocess": bare})
