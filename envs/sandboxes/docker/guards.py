"""Capabilities of docker containers: some are tested by the runner in a container, others only the engine knows."""

from collections.abc import Mapping
from typing import Any

from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.docker.connection import NAME


def capabilities(
    guards: Mapping[str, Any], engine: Mapping[str, Any], *, podman: bool, runtime: str | None
) -> Capabilities:
    """Return the capabilities, from the guards that a supervisor found in a container, and the container engine's
    information.
    """
    tree, counted = bool(engine.get("MemoryLimit")), bool(engine.get("PidsLimit"))
    landlock = int(guards["landlock"])
    notes = {
        "memory is bounded for each process alone: the engine cannot bound a container's (no memory cgroup)": not tree,
        "the number of processes is not bounded: the engine cannot count a container's (no pids cgroup)": not counted,
        "the container shares the machine's kernel; runtime='runsc' (gVisor) gives it one of its own": runtime is None,
        "a program can end the warm interpreter in its own container (Landlock 6, Linux 6.12, would keep it from that);"
        " the container is then thrown away": landlock < 6,
        "the number of files in the scratch folders is not bounded: Podman cannot; their size is": podman,
    }
    return Capabilities(
        backend=NAME,
        files=bool(guards["files"]),
        network=bool(guards["network"]),
        processes=True,  # a pid namespace: it contains only processes of the session and of the runner beside it
        process_count=counted,
        memory="tree" if tree else "process",
        syscalls=bool(guards["syscalls"]),
        landlock=landlock,
        own_user=True,  # each container has a different user id
        forks=False,
        notes=tuple(note for note, holds in notes.items() if holds),
    )
