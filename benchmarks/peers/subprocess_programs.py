"""The reference of `make bench-sandbox`: `python -c` in a bare subprocess, which contains nothing."""

import subprocess

from programs import Run, serve_programs


def bare() -> Run:
    """As every simple tool does it."""

    def run(source: str) -> str:
        return subprocess.run(["python", "-c", source], capture_output=True, text=True, timeout=60).stdout

    return run


serve_programs((), {"subprocess": bare})
