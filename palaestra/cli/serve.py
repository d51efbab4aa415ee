"""`palaestra serve SERVICE`: what this machine does for others.

A service is a module `serve_NAME` with `run(arguments)`, imported when it is called. Left out: what each of them does.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from palaestra.cli import HELP, SERVICES, usage
from palaestra.errors import UsageError


def run(arguments: Sequence[str]) -> int:
    """Run one service until it is interrupted."""
    name, remaining = (arguments[0], arguments[1:]) if arguments else (HELP[0], ())
    if name in HELP:
        print(usage("palaestra serve SERVICE", {"": SERVICES}))
        return 0
    if name not in SERVICES:
        close = get_close_matches(name, SERVICES, n=1, cutoff=0.0)[0]
        raise UsageError(f"there is no service {name!r}; did you mean {close!r}? services: {', '.join(SERVICES)}")
    status: int = import_module(f"palaestra.cli.serve_{name}").run(remaining)
    return status
