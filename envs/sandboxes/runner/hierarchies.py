"""Finds where control groups can be made: the mounts, the caller's own group, and groups that were delegated to it.

Version 1 has a hierarchy for each controller, version 2 one for all. If a machine has both, version 1 is used if it has
the memory and pids controllers. In version 2 a group can hand out its controllers only while it contains no process. So
this module uses a group above the caller's that already hands them out and may be written, or else the caller's own
group, whose processes it moves to a leaf. The name of a folder tells its owner.
"""

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from . import watching
from .syscalls import Unavailable

NEEDED = ("memory", "pids")
WANTED = ("cpu", "cpuacct")
"""Optional controllers: a share of the processor, and a count of its use; version 2 counts it in any group."""
_PREFIX = "palaestra"
_MEMBERS = f"{_PREFIX}-members"  # the leaf
_MOST_FOLDERS_SWEPT = 20_000
_MOVE_ROUNDS = 100

CgroupMount = tuple[dict[str, Path], list[Path]]
"""Folder of the owner for each controller, and the mounts that contain these folders."""


def owner_folders(process: str) -> CgroupMount:
    """Return the folders of this process, and make them if necessary. Raise `Unavailable` if that is impossible."""
    mounts = _mounts(process)
    groups = dict(line.split(":", 2)[1:] for line in Path(process, "cgroup").read_text().splitlines())
    if all(name in mounts for name in NEEDED):
        return _look_in_version_1(mounts, groups)
    if "" in mounts:
        return _look_in_version_2(*mounts[""], groups.get("", "/"))
    raise Unavailable("no control groups are mounted here (mount cgroup2 on /sys/fs/cgroup)")


def owner_name() -> str:
    """Return the name of this process's folder: pid namespace, pid, and start time."""
    return f"{_PREFIX}-{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}"


def _look_in_version_1(mounts: dict[str, tuple[Path, str]], groups: dict[str, str]) -> CgroupMount:
    of_controller = {name: path for names, path in groups.items() for name in names.split(",")}
    folders: dict[str, Path] = {}
    for name in (*NEEDED, *(name for name in WANTED if name in mounts)):
        base = _own_folder(*mounts[name], of_controller.get(name, "/"))
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(base / owner_name())
        except OSError as error:
            if name in WANTED:
                continue
            for created in folders.values():
                remove(created, 0)
            raise Unavailable(
                f"no group can be made in {base} ({error.strerror}); run as root, or on a machine with cgroup v2"
            ) from None
        folders[name] = base / owner_name()
    return folders, [mounts[name][0] for name in folders]


def _look_in_version_2(mount: Path, mounted_root: str, group: str) -> CgroupMount:
    """Use this group or one above it that hands out both controllers; otherwise make our own group hand them out."""
    here = _own_folder(mount, mounted_root, group)
    for base in [here, *here.parents]:
        if not base.is_relative_to(mount):
            break
        handed_out = words(base / "cgroup.subtree_control")
        if set(NEEDED) <= set(handed_out) and os.access(base / "cgroup.procs", os.W_OK):
            with contextlib.suppress(OSError):
                return _made_in_version_2(base, mount)
    missing = [name for name in NEEDED if name not in words(here / "cgroup.controllers")]
    if missing:
        reason = f"the group {here} has no controller {' and '.join(missing)}"
    else:
        try:
            _delegate(here)
            return _made_in_version_2(here, mount)
        except OSError as error:
            reason = f"the group {here} is not ours to divide ({error.strerror})"
    raise Unavailable(f"{reason}; run as root, or under `systemd-run --user --scope -p Delegate=yes`")


def _made_in_version_2(base: Path, mount: Path) -> CgroupMount:
    folder = base / owner_name()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    try:
        _hand_out(folder)
    except OSError:
        remove(folder, 0)
        raise
    return dict.fromkeys(NEEDED, folder), [mount]


def _delegate(group: Path) -> None:
    """Let a group hand out its controllers, after its processes were moved to a leaf, as version 2 requires."""
    leaf = group / _MEMBERS
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf)
    try:
        for _ in range(_MOVE_ROUNDS):
            members = words(group / "cgroup.procs")
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    write(leaf / "cgroup.procs", pid)
            if not members:
                break
        _hand_out(group)
    except OSError:
        remove(leaf, 0)
        raise


def _hand_out(group: Path) -> None:
    """Let the children of a group use the needed controllers, and those for CPU shares if possible."""
    controllers = [*NEEDED, *(name for name in WANTED if name in words(group / "cgroup.controllers"))]
    try:
        write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))
    except OSError:
        write(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in NEEDED))


def _mounts(process: str) -> dict[str, tuple[Path, str]]:
    """Map each controller to (mount point, the group that is mounted there); the unified hierarchy is named ''."""
    mounts: dict[str, tuple[Path, str]] = {}
    for line in Path(process, "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            mounts.setdefault(name, (Path(point.replace("\\040", " ")), root))
    return mounts


def _own_folder(mount: Path, mounted_root: str, group: str) -> Path:
    """Return the folder of the caller's group, or the mount itself if the group is outside of it (in a container)."""
    if mounted_root != "/":
        group = group.removeprefix(mounted_root)
    folder = mount / group.lstrip("/")
    return folder if folder.is_dir() else mount


def abandoned(mounts: Iterable[Path]) -> list[Path]:
    """Return the folders below these mounts whose owner process has ended."""
    folders = []
    for mount in dict.fromkeys(mounts):
        for folder, below, _ in itertools.islice(os.walk(mount), _MOST_FOLDERS_SWEPT):
            owner_names = [name for name in below if name.startswith(_PREFIX + "-") and name != _MEMBERS]
            folders += [Path(folder, name) for name in owner_names if not owner_lives(name)]
            below[:] = [name for name in below if name not in owner_names]
    return folders


def owner_lives(name: str) -> bool:
    """Return whether the owner may be alive; True if it is in another pid namespace, which this process cannot see."""
    try:
        namespace, pid, started = (int(word) for word in name.split("-")[1:])
    except ValueError:
        return True
    return namespace != _pid_namespace() or _start_time(pid) == started


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int:
    """Return the start of a process in clock ticks after boot; -1 if there is no such process."""
    fields = watching.status(pid)
    return -1 if fields[:1] in watching.ENDED else int(fields[19])


def words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def write(path: str | Path, value: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def remove(folder: Path, seconds: float) -> bool:
    """Remove a folder.

    Return False if it is still busy after `seconds`; it is busy for milliseconds after its last process.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            os.rmdir(folder)
            return True
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)
