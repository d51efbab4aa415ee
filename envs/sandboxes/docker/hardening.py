"""All settings that isolate a container, in one place.

The container isolates programs. The runner in it adds limits for each process, and installs the same system call filter
again. Both filters use one list of refused calls, that of the runner (`runner/syscalls.py`).
"""

import json
from typing import Any

from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.runner import seccomp, syscalls

RUNNER_BYTES = 192 * 2**20
"""Memory of the runner itself (supervisor and warm interpreters), in addition to that of a session."""
RUNNER_PROCESSES = 6
"""Processes of the runner: a supervisor, three warm interpreters, an init, and one more while it forks. The engine
counts all processes of a container together, so a program can use those that the runner does not have at the moment."""
LEAST_PROCESSES = 16
"""Smallest process limit: the container engine's program that becomes the supervisor starts with up to this many
threads."""
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware", "/dev/pts",
)  # fmt: skip
"""Masked paths: the defaults of engines, which any list replaces, and terminals, which no program here needs."""
RUNNER_INODES = 4
"""Entries of the scratch folders that belong to the runner: the root, the two folders, and one that tmpfs keeps."""
RLIMITS = {"core": 0, "nofile": 4096, "nproc": 4096}
"""Resource limits of the runner, which sets those of a session. An engine's defaults may exceed its machine's."""
OOM_SCORE = 500
"""OOM score: when the machine runs out of memory, the kernel kills containers before the trainer."""

_ARCHITECTURES = {"x86_64": "X86_64", "amd64": "X86_64", "aarch64": "AARCH64", "arm64": "AARCH64"}
_ENOSYS, _EPERM, _AF_UNIX = 38, 1, 1


def seccomp_profile(architecture: str) -> str:
    """Return the seccomp filter in the engine's format.

    It kills a program that makes a system call of another architecture.
    """
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
    """Return the engine's settings for a container.

    `profile` is the seccomp filter, or for Podman the path of its file.
    """
    scratch = f"rw,exec,nosuid,nodev,size={limits.scratch_bytes}"  # exec: compiled programs run here
    if podman:
        scratch += ",mode=1777"  # it supports none of the other options; the capabilities say what is missing
    else:
        scratch += f",nr_inodes={limits.scratch_files + RUNNER_INODES},mode=0700,uid={user},gid={user}"
    memory = limits.memory_bytes + RUNNER_BYTES
    config: dict[str, Any] = api.create_host_config(
        auto_remove=True,
        network_mode="none",
        ipc_mode="none",  # no /dev/shm, where the next run could read files of this one
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true", f"seccomp={profile}"],
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=max(limits.processes + RUNNER_PROCESSES, LEAST_PROCESSES),
        nano_cpus=int(cpus * 1e9),
        # /work is a link to /tmp in the image, so that both count together.
        tmpfs={"/tmp": scratch} | (dict.fromkeys(("/run", "/var/tmp"), "ro,size=4096") if podman else {}),
        ulimits=[{"Name": name, "Soft": max_value, "Hard": max_value} for name, max_value in RLIMITS.items()],
        log_config={"Type": "none", "Config": {}},
        oom_score_adj=OOM_SCORE,
        runtime=runtime,
        init=False,  # the supervisor is PID 1 and reaps
    )
    config["MaskedPaths"] = list(MASKED)  # the library has no argument for it
    return config
