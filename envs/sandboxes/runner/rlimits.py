"""Limits of one process: address space, open files, file sizes and CPU time. `cgroups` limits a whole session."""

import math
import os
import resource
from collections.abc import Mapping
from typing import Any

_BRANCHES = 16
"""Factor of a session's process limit: its branches share one user, but each has its own group, which
counts exactly."""


def mapped() -> int:
    """Return the size of this process's address space in bytes."""
    file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(file, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(file)


def install(limits: Mapping[str, Any], inherited: int, *, in_group: bool, own_count: bool) -> None:
    """Limit this process and its children; a limit that is already lower stays.

    `inherited` is the address space in bytes that the process had at its fork, which does not count. `in_group` is True
    if a control group bounds the session, so that these limits are a second protection. `own_count` is True if its user
    has no processes outside the session, so that their number can be limited.
    """
    seconds = math.ceil(limits["cpu_seconds"])
    address_space = inherited + limits["memory_bytes"]
    rlimits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (limits["open_files"],) * 2,
        # Where a group bounds the session, this is so that Python can say MemoryError.
        resource.RLIMIT_AS: (address_space, resource.RLIM_INFINITY if in_group else address_space),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    if own_count:
        rlimits[resource.RLIMIT_NPROC] = (limits["processes"] * (_BRANCHES if in_group else 1),) * 2
    for which, (soft, hard) in rlimits.items():
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))


def free_address_space() -> None:
    """Raise the address space as far as allowed, for programs that reserve far more than they use, as Node does."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
