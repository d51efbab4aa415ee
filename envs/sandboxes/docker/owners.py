"""Whose a container is, and whose owner is gone.

A container dies by itself when the process that holds its stream does. What this file is for is the rest: a container
that was created but not yet started when its owner was killed, and one whose engine was restarted under it. What cannot
be judged from here (a process on another machine, in another pid namespace) is left alone.
"""

import os
import time
from pathlib import Path
from typing import Any

from palaestra.envs.sandboxes.docker.connection import library

LABEL = "palaestra.owner"
GONE_SECONDS = 10.0
"""How long a removal may take."""


def mine() -> str:
    """This process, so that neither a reused pid nor another machine's process is taken for it."""
    return f"{_here()} {os.getpid()} {_started(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Whether the process of a label surely runs no more."""
    before, _, started = owner.rpartition(" ")
    place, _, process = before.rpartition(" ")
    return place == _here() and process.isdigit() and _started(int(process)) != started


def reap(api: Any) -> int:
    """Remove the containers that nobody holds; how many there were."""
    gone = 0
    for container in api.containers(all=True, filters={"label": LABEL}):
        # One that ran and ended is nobody's, whoever made it; Created is not among these: it may be about to start.
        ended = container.get("State") in ("exited", "dead")
        if ended or is_gone(container["Labels"].get(LABEL, "")):
            remove(api, container["Id"])
            gone += 1
    return gone


def remove(api: Any, container: str) -> None:
    """Kill, remove, and wait until it is gone; one that goes by itself is fine."""
    errors = library().errors
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        try:
            api.remove_container(container, force=True, v=True)
        except errors.NotFound:
            return
        except errors.APIError:  # it is dying or being removed already, and engines differ in what they call that
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _here() -> str:
    """This boot of this machine and this pid namespace: where a pid means something."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"


def _started(process: int) -> str:
    """When a process began, in ticks since the boot; "" when there is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = status.rpartition(")")[2].split()  # the name before it may hold spaces
    return "" if fields[0] in "ZX" else fields[19]
