"""What scenes are made of: the list of them, and looks at processes and control groups.

A scene takes more than one program. It returns complaints, or None where the backend lacks what it is about.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from palaestra.envs.sandboxes import Sandbox
from palaestra.errors import UsageError

from .judging import descendants
from .program import PRELUDE
from .setting import Setting

Scene = Callable[[Sandbox, Setting, str], list[str] | None]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    """Make a scene of a function."""
    SCENES[function.__name__] = function
    return function


def refused(attempts: dict[str, Callable[[], object]]) -> list[str]:
    complaints = []
    for name, attempt in attempts.items():
        try:
            found = attempt()
        except (OSError, UsageError):
            continue
        except Exception as error:  # Any other error is the finding.
            complaints.append(f"{name} raised {error!r}; expected OSError or UsageError")
        else:
            complaints.append(f"{name} was not refused: {str(found)[:100]!r}")
    return complaints


def marked(setting: Setting, program: str) -> str:
    return PRELUDE.format(mark=setting.mark) + program


SECONDS = 60.0
"""For what comes by itself, on a machine that is busy with others; what should not be there stays for longer."""


async def until(holds: Callable[[], object], seconds: float = SECONDS) -> bool:
    latest = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > latest:
            return False
        await asyncio.sleep(0.01)
    return True


def readable(pid: int) -> list[int]:
    """The process and those of its descendants that it may look into."""
    return [one for one in (pid, *descendants(pid)) if os.access(f"/proc/{one}/fd", os.R_OK)]


def children(pid: int) -> set[int]:
    found = set()
    for one in descendants(pid):
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.add(one)
    return found


def born(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[19] if fields[0] != "Z" else ""


def alive(family: dict[int, str]) -> set[int]:
    """Those that live on, of processes with the moments when they were born: a number may be given to another."""
    return {pid for pid, then in family.items() if then and born(pid) == then}


def mounts() -> set[str]:
    """Where something is mounted that a sandbox would mount; others of this machine mount other things meanwhile."""
    points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    ours = ("/sys", "/work", "/proc", "/dev", "/usr", "/opt/palaestra", sys.prefix, sys.base_prefix)
    return {point for point in points if point.startswith(ours)}


def groups(owners: dict[int, str]) -> set[str]:
    """The control groups of supervisors with these numbers and births, which are in a group's name."""
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))  # others come and go meanwhile
    ours = {folder: os.path.basename(folder).split("-") for folder in folders if "palaestra-" in folder}
    known = {(str(pid), then) for pid, then in owners.items()}
    return {folder for folder, words in ours.items() if words[0] == "palaestra" and tuple(words[2:4]) in known}
