"""Allow one writing process at a time in a run's folder. The kernel releases the lock when its holder ends."""

import errno
import fcntl
import os
import socket
from io import TextIOWrapper
from pathlib import Path

from palaestra.errors import UsageError


def claimed(folder: Path) -> TextIOWrapper:
    """Lock a folder, which is created if necessary. Return the open lock file; closing it releases the lock.

    Raise `UsageError` if another process holds the lock.
    """
    lock = _locked(folder)
    while not _is_file_of(folder, lock):  # Its last holder has deleted it meanwhile.
        lock.close()
        lock = _locked(folder)
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()
    return lock


def _is_file_of(folder: Path, lock: TextIOWrapper) -> bool:
    try:
        return os.path.samestat(os.fstat(lock.fileno()), (folder / "lock").stat())
    except FileNotFoundError:
        return False


def _locked(folder: Path) -> TextIOWrapper:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the run folder {folder} cannot be made ({error.strerror or error}); choose another with --run"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "another process"
        lock.close()
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise UsageError(
                f"{folder} cannot be locked ({error.strerror}): two runs in it would spoil each other; "
                "choose a folder on a file system with locks"
            ) from error
        raise UsageError(
            f"{folder} is in use by {holder}; wait for it, stop it, or choose another folder with --run"
        ) from error
    return lock
