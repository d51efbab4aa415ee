"""The root folder of a sandbox: the interpreter, the system's programs, a few devices, and nothing else of the host.

Everything is mounted inside a private mount namespace over existing folders, and disappears with the last process in
it. A folder has the same path inside as outside, so that texts which name it stay right. If the sandbox itself uses
that path (/tmp, /work ...), the folder is shown below /opt/palaestra, and `inside` returns its path.
"""

import contextlib
import os
import sys
from collections.abc import Iterable

from . import syscalls as kernel

SCRATCH = "/work"
_BASE = "/sys"  # every Linux has this folder, and the sandbox wants nothing of what is in it
_RELOCATED = "/opt/palaestra"
_OWN = (SCRATCH, "/tmp", "/proc", "/dev", "/etc", "/sys", "/opt/palaestra")
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
_CAP_MKNOD = 27
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/false\nagent:x:1000:1000:agent:/tmp:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}

MountPlan = list[tuple[str, str]]
"""(path outside, path inside) of every folder that is shown."""


def build(readonly: Iterable[str], hidden: Iterable[str] = ()) -> MountPlan:
    """Make the new root, move into it, and return the folders that it shows.

    The caller is PID 1 of new pid and mount namespaces.

    A `hidden` folder below a shown one is empty in the new root.
    """
    places = plan([*interpreter(), *readonly])
    sys.executable = os.path.realpath(sys.executable)  # a link, maybe, of a virtual environment that is not shown
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    with open("/proc/self/uid_map", encoding="ascii") as file:
        in_first_user_namespace = file.read().split() == ["0", "0", "4294967295"]
    may_make_devices = in_first_user_namespace and kernel.has_capability(_CAP_MKNOD)
    flags = kernel.MS_NOSUID | (0 if may_make_devices else kernel.MS_NODEV)
    kernel.mount("tmpfs", _BASE, "tmpfs", flags, "size=4m,mode=755")
    for source, target in [("/usr", "/usr"), *places]:
        _show(source, target)
    for path in _SYSTEM:
        if os.path.islink(path):
            os.symlink(os.readlink(path), _BASE + path)
        elif os.path.isdir(path):
            _show(path, path)
    for path in hidden:
        if os.path.isdir(where := _BASE + inside(path, places)):
            kernel.mount("none", where, "tmpfs", kernel.MS_RDONLY | kernel.MS_PLAIN, "size=4k,nr_inodes=1")
    _fill_etc()
    _fill_devices(may_make_devices)
    os.mkdir(_BASE + "/proc")
    kernel.mount("proc", _BASE + "/proc", "proc", kernel.MS_PLAIN)
    os.mkdir(_BASE + SCRATCH)
    os.symlink(SCRATCH + "/tmp", _BASE + "/tmp")
    os.chdir(_BASE)
    kernel.pivot_root_here()
    kernel.make_read_only("/", recursive=False, devices=may_make_devices)
    _rewrite_interpreter(places)
    return places


def inside(path: str, places: MountPlan) -> str:
    """Return the path in the new root of a path outside; return it unchanged if it is not shown in the new root."""
    for source, target in places:
        if _below(path, [source]):
            return target + path[len(source) :]
    return path


def interpreter() -> list[str]:
    """Return the folders of this interpreter, and of the libraries that it has loaded, which may be elsewhere."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").partition("/")[2] for line in file if "/" in line and ".so" in line}
    libraries = {os.path.dirname("/" + path) for path in paths if not path.endswith("(deleted)")}
    return [sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable)), *libraries]


def plan(paths: Iterable[str]) -> MountPlan:
    """Return the folders to show and their paths inside, without repetitions and folders inside others.

    Raise `Unavailable` for a folder that holds more than an interpreter, such as / or the user's home.
    """
    folders: list[str] = []
    for path in sorted({os.path.abspath(path) for path in paths if path}):
        if _below(path, ("/usr", *_SYSTEM, *folders)):
            continue
        try:
            os.stat(path)
        except PermissionError:
            raise kernel.Unavailable(
                f"this user may not reach {path}, which programs in the sandbox need",
                "give this user read access to the folders above it",
                "use an interpreter and packages that this user can read",
            ) from None
        except OSError:
            continue  # nothing is there
        home = os.path.expanduser("~")
        if path == "/" or _below(home, [path]) or path in _OWN:
            raise kernel.Unavailable(
                f"the sandbox would have to show {path}, which holds more than an interpreter",
                "install the interpreter or the packages in a folder of their own",
            )
        folders.append(path)
    moved = [path for path in folders if _below(path, _OWN)]
    return [(path, f"{_RELOCATED}/{moved.index(path)}" if path in moved else path) for path in folders]


def check_readable(places: MountPlan) -> None:
    """Raise `Unavailable` if a shown folder cannot be read. The caller must run as the user of the programs."""
    library = os.path.dirname(os.__file__)
    for source, target in [*places, (library, library)]:
        if not os.access(target, os.R_OK | (os.X_OK if os.path.isdir(target) else 0)):
            raise kernel.Unavailable(
                f"programs in the sandbox run as another user, who may not read {source}",
                f"chmod -R go+rX {source}",
                "use an interpreter and packages that every user can read",
            )


def _show(source: str, target: str) -> None:
    """Bind a folder read-only with all mounts below it; an ordinary user may not leave those out."""
    where, is_folder = _BASE + target, os.path.isdir(source)
    os.makedirs(where if is_folder else os.path.dirname(where), exist_ok=True)
    if not is_folder:
        open(where, "ab").close()
    try:
        kernel.mount(os.path.realpath(source), where, None, kernel.MS_BIND | kernel.MS_REC)
    except OSError as error:
        raise kernel.Unavailable(
            f"cannot show {source} in the sandbox: {error}", f"make {source} readable for this user"
        ) from None
    kernel.make_read_only(where, recursive=True)


def _fill_etc() -> None:
    os.mkdir(_BASE + "/etc")
    texts = {name: text.encode() for name, text in _ETC.items()}
    with contextlib.suppress(OSError), open("/etc/ld.so.cache", "rb") as file:
        texts["ld.so.cache"] = file.read(1 << 20)  # without it the loader looks in the folders it was built with
    for name, content in texts.items():
        with open(f"{_BASE}/etc/{name}", "wb") as file:
            file.write(content)
    if os.path.isdir("/etc/alternatives"):
        _show("/etc/alternatives", "/etc/alternatives")


def _fill_devices(may_make: bool) -> None:
    """Create the devices: as nodes if allowed, which saves each session five mounts to copy, else as mounts."""
    os.mkdir(_BASE + "/dev")
    for name, minor in _DEVICES.items():
        path = f"{_BASE}/dev/{name}"
        if may_make:
            os.mknod(path, 0o020666, os.makedev(1, minor))
            os.chmod(path, 0o666)
        else:
            open(path, "ab").close()
            kernel.mount(f"/dev/{name}", path, None, kernel.MS_BIND)
    links = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "shm": SCRATCH + "/tmp"}
    for name, target in links.items():
        os.symlink(target, f"{_BASE}/dev/{name}")


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _rewrite_interpreter(places: MountPlan) -> None:
    """Change the paths of this interpreter to those in the new root."""
    sys.path[:] = [inside(path, places) for path in sys.path]
    sys.path_importer_cache.clear()
    for name in ("prefix", "base_prefix", "exec_prefix", "base_exec_prefix", "executable"):
        setattr(sys, name, inside(os.path.abspath(getattr(sys, name)), places))
    for module in list(sys.modules.values()):
        if isinstance(folders := getattr(module, "__path__", None), list):
            folders[:] = [inside(path, places) for path in folders]
