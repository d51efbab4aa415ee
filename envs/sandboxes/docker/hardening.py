"""How a container is locked up: every setting that keeps a program in, in one place.

The container is the wall; the runner inside adds limits per process and the same filter of system calls once more, by
number. The list of refused calls is the runner's (`runner/seccomp.py`): there is one.
"""

import json
from typing import Any

from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.runner import seccomp, syscalls

RUNNER_BYTES = 192 * 2**20
"""Memory of the runner itself (supervisor and warm interpreters), beyond what a session may use."""
RUNNER_PROCESSES = 6
"""The runner itself: a supervisor, three warm interpreters, an init, and one more while it forks. The engine counts all
processes of a container together, so a program can have what of these is not there."""
LEAST_PROCESSES = 16
"""The engine's own program, which becomes the supervisor, begins with this many threads at most."""
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware", "/dev/pts",
)  # fmt: skip
"""What engines mask by themselves, which naming any replaces; and terminals, which no program here needs."""
RUNNER_INODES = 4
"""Entries of the scratch folders that are the runner's: the root, the two folders, and one that tmpfs keeps."""
RLIMITS = {"core": 0, "nofile": 4096, "nproc": 4096}
"""Of the runner, which sets a session's. Named because an engine's defaults may be more than its own machine allows."""
OOM_SCORE = 500
"""When the machine itself runs out of memory, containers go before the trainer."""

_ARCHITECTURES = {"x86_64": "X86_64", "amd64": "X86_64", "aarch64": "AARCH64", "arm64": "AARCH64"}
_ENOSYS, _EPERM, _AF_UNIX = 38, 1, 1


def seccomp_profile(architecture: str) -> str:
    """The filter as engines want it; system calls of other architectures are killed."""
    refused: dict[str, Any] = {"action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM}
    other_family = {"index": 0, "value": _AF_UNIX, "op": "SCMP_CMP_NE"}
    rules: list[dict[str, Any]] = [
        {"names": list(seccomp.REFUSED), **refused},
        {"names": ["clone3"], **refused, "errnoRet": _ENOSYS},  # libc then takes clone
        {"names": ["socket", "socketpair"], **refused, "args": [other_family]},
    ]
    for flag in (1 << bit for bit in range(32) if syscalls.NEW_NAMESPACES >> bit & 1):
        masked = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append({"names": ["clone"], **refused, "args": [masked]})
    kinds = [f"SCMP_ARCH_{_ARCHITECTURES[architecture]}"]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": kinds, "syscalls": rules})


def host_config(
    api: Any, limits: Limits, *, user: int, profile: str, runtime: str | None, cpus: float, podman: bool
) -> dict[str, Any]:
    """What the engine is told to enforce. `profile` is a filter, or the path of one where the engine wants a path."""
    scratch = f"rw,exec,nosuid,nodev,size={limits.scratch_bytes}"  # exec: compiled programs run here
    if podman:
        scratch += ",mode=1777"  # it knows none of the others; what follows from that is in the capabilities
    else:
        scratch += f",nr_inodes={limits.scratch_files + RUNNER_INODES},mode=0700,uid={user},gid={user}"
    memory = limits.memory_bytes + RUNNER_BYTES
    made: dict[str, Any] = api.create_host_config(
        auto_remove=True,
        network_mode="none",
        ipc_mode="none",  # no /dev/shm, where files of one run would lie before the eyes of the next
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true", f"seccomp={profile}"],
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=max(limits.processes + RUNNER_PROCESSES, LEAST_PROCESSES),
        nano_cpus=int(cpus * 1e9),
        # /work is a link to it (the image has it), so that both count together.
        tmpfs={"/tmp": scratch} | (dict.fromkeys(("/run", "/var/tmp"), "ro,size=4096") if podman else {}),
        ulimits=[{"Name": name, "Soft": most, "Hard": most} for name, most in RLIMITS.items()],
        log_config={"Type": "none", "Config": {}},
        oom_score_adj=OOM_SCORE,
        runtime=runtime,
        init=False,  # the supervisor is PID 1 and reaps
    )
    made["MaskedPaths"] = list(MASKED)  # no argument of the library's
    return made
