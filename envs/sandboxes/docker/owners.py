"""Find and remove containers whose owner process no longer exists.

A container dies by itself when the process that holds its stream does. This file is for the other cases: a container
that was created but not yet started when its owner was killed, and one whose engine was restarted. A container that
cannot be judged from here (its owner is on another machine, or in another pid namespace) is not removed.
"""

import time
from pathlib import Path
from typing import Any

from palaestra.envs.sandboxes.docker.connection import library
from palaestra.envs.sandboxes.runner import hierarchies

LABEL = "palaestra.owner"
GONE_SECONDS = 10.0
"""Timeout of a removal, in seconds."""


def owner_label() -> str:
    """Return a label of this process that no reused pid and no process of another machine can have."""
    return f"{_boot()} {hierarchies.owner_name()}"


def is_gone(owner: str) -> bool:
    """Return whether the process of a label certainly does not run any more."""
    boot, _, name = owner.partition(" ")
    return boot == _boot() and not hierarchies.owner_lives(name)


def reap(api: Any) -> int:
    """Remove the containers without an owner, and return their number."""
    gone = 0
    for container in api.containers(all=True, filters={"label": LABEL}):
        # A container that ran and ended has no owner any more. One in the state "created" may be about to start.
        ended = container.get("State") in ("exited", "dead")
        if ended or is_gone(container["Labels"].get(LABEL, "")):
            remove(api, container["Id"])
            gone += 1
    return gone


def remove(api: Any, container: str) -> None:
    """Kill and remove a container, and wait until it is gone. No error if it ends by itself meanwhile."""
    errors = library().errors
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        try:
            api.remove_container(container, force=True, v=True)
        except errors.NotFound:
            return
        except errors.APIError:  # it is dying or being removed already, for which engines have different errors
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _boot() -> str:
    """Return the boot of this machine, within which a pid namespace, a pid and a start time are unique."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
