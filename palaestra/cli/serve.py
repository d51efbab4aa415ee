"""`palaestra serve SERVICE`: run a service for other processes or machines.

A service is a module `serve_NAME` with `run(arguments)`, imported when it is called. Left out: what each service does.
"""

from collections.abc import Sequence
from importlib import import_module

from palaestra.cli import HELP, SERVICES, usage
from palaestra.errors import UsageError, unknown_name


def run(arguments: Sequence[str]) -> int:
    """Run one service until it is interrupted."""
    name, remaining = (arguments[0], arguments[1:]) if arguments else (HELP[0], ())
    if name in HELP:
        print(usage("palaestra serve SERVICE", {"": SERVICES}))
        return 0
    if name not in SERVICES:
        raise UsageError(unknown_name("service", name, SERVICES))
    status: int = import_module(f"palaestra.cli.serve_{name}").run(remaining)
    return status
