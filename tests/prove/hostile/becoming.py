"""To be an ordinary user who can reach the interpreter, also where it lies in root's own folder."""

import os
import sys
from pathlib import Path

from palaestra.envs.sandboxes.runner.syscalls import CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC, mount, unshare

USER = 61_234
"""A number that no account has."""


def open_the_way() -> None:
    """In a mount namespace of one's own: show the interpreter and this repository where others may reach them."""
    repository = Path(__file__).resolve().parents[3]
    wanted = {Path(sys.base_prefix), Path(sys.prefix), repository}
    closed = {top for path in wanted if (top := _closed(path)) is not None}
    unshare(CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    for top in closed:
        inner = {path: os.open(path, os.O_PATH) for path in wanted if path.is_relative_to(top)}
        mount("tmpfs", str(top), "tmpfs", 0, "mode=755,size=1m")
        for path, descriptor in inner.items():
            path.mkdir(parents=True)
            mount(f"/proc/self/fd/{descriptor}", str(path), None, MS_BIND | MS_REC)
            os.close(descriptor)


def become(user: int) -> None:
    """For good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _closed(path: Path) -> Path | None:
    """The first folder on the way that others may not enter."""
    for folder in (*reversed(path.parents), path):
        if folder.stat().st_mode & 0o005 != 0o005 and not (folder == path.parent and folder.stat().st_mode & 0o001):
            return folder
    return None
