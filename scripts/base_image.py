"""Layers for container images, made of this machine's own files: no registry and no network.

`interpreter` packs the Python that runs this, some of its libraries, Debian packages as dpkg lists them, the shared
objects that all of it needs and a few tools, laid out as in the official images (/usr/local/bin/python3). For the tests
it stands in for the distribution that a user's build pulls; what it lacks of one (accounts, locales, a package manager)
is left out on purpose. Standard library only.
"""

import importlib.metadata
import io
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

TOOLS = {"sh", "bash", "env", "true", "false", "test", "sleep", "date", "seq", "xargs", "uname", "id", "basename"}
TOOLS |= {"ls", "cat", "echo", "rm", "rmdir", "mkdir", "cp", "mv", "ln", "touch", "chmod", "find", "dirname"}
TOOLS |= {"grep", "sed", "awk", "head", "tail", "wc", "sort", "uniq", "cut", "tr", "tee", "diff"}
COMPILERS = {"c++", "cc", "g++", "gcc", "node"}
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
SKIPPED_FOLDERS |= {"dist-packages", "_pyrepl"}
SHORTCUTS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
EMPTY_FOLDERS = {"proc": 0o755, "sys": 0o755, "dev": 0o755, "etc": 0o755, "tmp": 0o1777}
UNWANTED = tuple(f"/usr/{name}/" for name in ("share/doc", "share/man", "share/locale", "include/node"))
UNWANTED += ("/usr/lib/node_modules/",)
SECONDS = 120


class Layer:
    """What goes into a tar: a path in the image and the file of this machine that lies there."""

    def __init__(self):
        self.files = {}
        self.links = {}
        self.binaries = set()

    def add(self, path, source):
        """Place a file; a link is followed, so that no file of the layer hangs on another machine's layout."""
        source = Path(source).resolve()
        if not source.is_file():
            return
        place = inside(path)
        self.files[place] = source
        with source.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                self.binaries.add(source)

    def add_tree(self, place, source):
        """Place a folder with all that is below it, except tests and what nobody runs headless."""
        for folder, folders, names in os.walk(source):
            folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
            for name in names:
                if not name.endswith((".a", ".o")):
                    file = Path(folder, name)
                    self.add(f"{place}/{file.relative_to(source)}", file)

    def add_shared_objects(self):
        """Every shared object that the binaries load, as the loader of this machine finds them."""
        known = set(self.files.values())
        binaries = sorted(str(path) for path in self.binaries)
        for first in range(0, len(binaries), 200):
            words = ["ldd", *binaries[first : first + 200]]
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
            for found in re.finditer(r"^\s+(?:\S+ => )?(/\S+) \(0x", done.stdout, re.MULTILINE):
                library = Path(found[1])
                if str(library).startswith(("/lib", "/usr/lib")):
                    self.add(str(library), library)
                elif library.resolve() not in known:
                    # One of a prefix of its own (libpython) would not be on the loader's path in the image. Those of
                    # wheels are: they were added with the wheel, and their users name them by a relative path.
                    self.add(f"/usr/lib/{triplet()}/{library.name}", library)

    def write(self, path):
        """The tar at `path`: root owns everything, and everybody may read it."""
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
            for name, mode in EMPTY_FOLDERS.items():
                tar.addfile(entry(name, tarfile.DIRTYPE, mode))
            users = b"root:x:0:0::/:/bin/sh\nagent:x:10000:10000::/work:/bin/sh\n"
            made = entry("etc/passwd", tarfile.REGTYPE, 0o644)
            made.size = len(users)
            tar.addfile(made, io.BytesIO(users))
            for name, target in [*SHORTCUTS.items(), *sorted(self.links.items())]:
                if name not in self.files:
                    tar.addfile(entry(name, tarfile.SYMTYPE, 0o777, target))
            for name, source in sorted(self.files.items()):
                made = entry(name, tarfile.REGTYPE, 0o755 if os.access(source, os.X_OK) else 0o644)
                status = source.stat()
                # The time matters: Python takes a compiled file only if it fits its source's.
                made.size, made.mtime = status.st_size, int(status.st_mtime)
                with source.open("rb") as file:
                    tar.addfile(made, file)


def interpreter(path, libraries, packages=()):
    """A root file system: this Python, a few tools, the named libraries and Debian packages with all they need."""
    layer = Layer()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    layer.add(f"/usr/local/bin/{version}", sys.executable)
    layer.links["usr/local/bin/python3"] = layer.links["usr/local/bin/python"] = version
    layer.add_tree(f"/usr/local/lib/{version}", sysconfig.get_path("stdlib"))
    layer.add_tree(f"/usr/local/lib/{version}", sysconfig.get_path("platstdlib"))
    target = site.getsitepackages(["/usr/local"])[0]  # Debian's own Python looks elsewhere than others
    for name in requirements(libraries):
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts and not SKIPPED_FOLDERS & set(file.parts):
                layer.add(f"{target}/{file}", file.locate())
    add_packages(layer, packages)
    for tool in sorted(TOOLS | COMPILERS if packages else TOOLS):
        found = shutil.which(tool)
        if found:
            layer.add(f"/usr/bin/{tool}", found)
    layer.add_shared_objects()
    layer.write(path)


def add_packages(layer, names):
    """The files of Debian packages and of all that they depend on."""
    for package in packages_with_dependencies(names) if names else ():
        words = ["dpkg", "-L", package]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        for line in done.stdout.splitlines():
            file = Path(line)
            if line.startswith(UNWANTED) or not file.is_file():
                continue
            if file.is_symlink() and "etc/alternatives" not in os.readlink(file):
                layer.links[inside(line)] = os.readlink(file)
            else:
                layer.add(line, file)


def packages_with_dependencies(names):
    """The installed packages among these and what they depend on, without Python: the image has its own."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}|${Package}|${Depends}, ${Pre-Depends}\n"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    rows = [line.split("|", 2) for line in done.stdout.splitlines() if line.startswith("ii")]
    needs = {name: re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", depends) for _, name, depends in rows}
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name in needs and name not in found and not name.startswith(("python", "libpython", "debconf", "perl")):
            found.add(name)
            waiting += needs[name]
    return sorted(found)


def requirements(names):
    """The installed distributions among these and what they need, extras left out."""
    found, waiting = set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            waiting += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return sorted(found)


def triplet():
    return sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"


def inside(path):
    """A path of the image: /bin and its kind are links into /usr there."""
    path = os.path.normpath(str(path)).lstrip("/")
    first, _, rest = path.partition("/")
    return f"{SHORTCUTS[first]}/{rest}" if first in SHORTCUTS and rest else path


def entry(name, kind, mode, target=""):
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, target
    return made
