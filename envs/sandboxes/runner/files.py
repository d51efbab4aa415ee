"""Reads and writes files in a session's folder. The supervisor does this from outside, without the session's processes.

A path is opened one name at a time through descriptors and no link is followed, so a program cannot lead it outside
meanwhile. Only regular files are read and written; a pipe or a device is refused without waiting.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
NAME_BYTES, DEPTH = 255, 32


def _names(path: str) -> list[str]:
    """Return the names along a path below the folder; raise OSError if it leaves the folder or cannot be used."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.startswith("/") or ".." in names:
        raise OSError(errno.EACCES, "a path must stay below the session's folder", path)
    if "\0" in path or len(names) > DEPTH or any(len(os.fsencode(name)) > NAME_BYTES for name in names):
        raise OSError(errno.ENAMETOOLONG, "no usable path", path)
    return names


@contextlib.contextmanager
def _folder(root: int, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder at these names below `root`; `make` creates missing ones, with the owner of `root`."""
    here = os.open(".", _FOLDER, dir_fd=root)
    try:
        owner = os.fstat(here)
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=here)
            below = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
            if make:
                _own(here, owner)
        yield here
    finally:
        os.close(here)


def _own(descriptor: int, owner: os.stat_result) -> None:
    status = os.fstat(descriptor)
    if (status.st_uid, status.st_gid) != (owner.st_uid, owner.st_gid):
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def child(root: int, name: str) -> int:
    """Open a folder in `root`, and return its descriptor, which the caller closes."""
    return os.open(name, _FOLDER, dir_fd=root)


def branch(scratch: int, area: str, original: int) -> int:
    """Create the folder `area` of a branch in the scratch folder; return the descriptor of its working folder."""
    *above, name = area.split("/")
    owner = os.fstat(original)
    with _folder(scratch, above) as folder:
        os.mkdir(name, 0o755, dir_fd=folder)
        area_folder = child(folder, name)
    try:
        os.mkdir("0", 0o700, dir_fd=area_folder)
        working = child(area_folder, "0")
    finally:
        os.close(area_folder)
    _own(working, owner)
    return working


def put(root: int, path: str, data: bytes | memoryview) -> None:
    """Write a regular file below the folder `root`; the owner of `root` owns it."""
    if not _names(path):
        raise OSError(errno.EISDIR, "a file needs a name", path)
    with _regular(root, path, os.O_WRONLY | os.O_CREAT) as file:
        os.ftruncate(file, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        _own(file, os.fstat(root))


def get(root: int, path: str, max_bytes: int) -> bytes:
    """Return the content of a regular file; raise OSError if it has more than `max_bytes` bytes."""
    with _regular(root, path, os.O_RDONLY) as file:
        size = os.fstat(file).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes; at most {max_bytes} are read", path)
        parts, left = [], max_bytes
        while left > 0 and (part := os.read(file, min(left, 2**20))):  # it may grow while it is read
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


@contextlib.contextmanager
def _regular(root: int, path: str, flags: int) -> Iterator[int]:
    """Open a regular file; with O_CREAT create it, and missing folders on its path."""
    *steps, name = _names(path) or ["."]
    with _folder(root, steps, make=bool(flags & os.O_CREAT)) as folder:
        file = os.open(name, _FILE | flags, 0o644, dir_fd=folder)
        try:
            mode = os.fstat(file).st_mode
            if stat.S_ISDIR(mode):
                raise OSError(errno.EISDIR, "a folder", path)
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            yield file
        finally:
            os.close(file)


def listdir(root: int, path: str, max_names: int) -> list[str]:
    """Return at most `max_names` names in a folder, sorted; names of folders end with a slash."""
    names: list[str] = []
    with _folder(root, _names(path)) as folder, os.scandir(folder) as entries:
        for entry in entries:
            if len(names) == max_names:
                break
            names.append(entry.name + "/" * entry.is_dir(follow_symlinks=False))
    return sorted(names)


def empty(folder: str) -> None:
    """Delete everything in a folder, also locked and deeply nested folders: they are made accessible and moved up."""
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    prefix, moved = os.urandom(8).hex(), 0
    try:
        while names := os.listdir(top):
            for name in names:
                if not _is_folder(name, top):
                    os.unlink(name, dir_fd=top)
                    continue
                os.chmod(name, 0o700, dir_fd=top)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
                try:
                    for child in os.listdir(inner):
                        if _is_folder(child, inner):
                            moved += 1
                            os.chmod(child, 0o700, dir_fd=inner)
                            os.rename(child, f"{prefix}.{moved}", src_dir_fd=inner, dst_dir_fd=top)
                        else:
                            os.unlink(child, dir_fd=inner)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
