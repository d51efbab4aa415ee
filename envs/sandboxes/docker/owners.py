"""Finds and removes containers whose owner process no longer exists.

A container ends by itself when its owner process ends, because that closes its stream. This module removes the others:
a container that was created but not yet started when its owner was killed, and one whose engine was restarted. A
container is kept if its owner cannot be checked, because it is on another machine or in another pid namespace.
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
    """Return whether the process that a label names has certainly ended."""
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
    """Kill and remove a container, and wait until it no longer exists.

    No error is raised if it ends by itself meanwhile.
    """
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
    """Return the id of this machine's boot. In one boot a pid namespace, a pid and a start time identify a process."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
