"""Landlock, a second protection of files: even if a mount has a gap, a program can write only to its scratch folders.

From version 6 on it also keeps signals and abstract sockets inside the session. Version 0 means that the kernel has no
Landlock; then only the mounts protect the files, and the capabilities say so.
"""

import functools
import os
import stat
import struct
from collections.abc import Iterable

from .syscalls import call

_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_TCP = 3  # bind and connect
_SCOPES = 3  # abstract sockets, signals


@functools.cache
def version() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    try:
        return call("landlock_create_ruleset", None, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str], devices: str) -> None:
    """Allow only: read and execute below `read`, everything below `write`, plain reading and writing below `devices`.

    What was forbidden before stays forbidden. no_new_privs must be set. Without Landlock this does nothing.
    """
    abi = version()
    if not abi:
        return
    # Every right this version knows: 13 in the first, then refer, truncate, and ioctl on devices in the fifth.
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    used = 3 if abi >= 6 else 2 if abi >= 4 else 1
    ruleset = call("landlock_create_ruleset", struct.pack("3Q", handled, _TCP, _SCOPES), 8 * used, 0)
    try:
        for path in read:
            _allow(ruleset, path, _READ & handled)
        for path in write:
            _allow(ruleset, path, handled)
        _allow(ruleset, devices, (_READ | _WRITE_FILE | _TRUNCATE) & handled)
        call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
