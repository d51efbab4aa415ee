"""What there is room for: memory of the device, of this machine, and on the disk."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_FRAGMENTS = 0.05
"""Share of a GPU's memory that lies between tensors, where no other can use it."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a run may take."""

    device: int
    """Where the model lies; 0 where unknown."""
    host: int
    """Main memory, where the device is a GPU; 0 where unknown."""
    on_gpu: bool
    name: str = "this machine"
    """Of the device."""
    ranks: int = 1
    """How many such devices divide the model."""


def room_of(device: "torch.device") -> Room:
    """What is free on a device now."""
    if device.type != "cuda":
        return Room(available_memory(), 0, False)
    import torch  # Doctor asks for the memory of machines that have none.

    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    name = torch.cuda.get_device_properties(device).name
    return Room(round(free * (1 - _FRAGMENTS)), available_memory(), True, name)


def gpu_room(size: float, host: int = 0) -> Room:
    """An empty GPU of so many GB, as they are sold."""
    return Room(round(size * 1e9 * (1 - _FRAGMENTS)), host, True, f"a GPU of {size:g} GB")


def free_disk(folder: Path) -> int:
    """Bytes that may be written where a folder is, or will be."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def available_memory() -> int:
    """Bytes that this process may still take, 0 where unknown: the kernel's estimate, or what control groups leave."""
    told = re.search(r"^MemAvailable: +(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    free = int(told[1]) * 1024 if told else 0
    own = re.search("^0::/(.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
    here = Path("/sys/fs/cgroup", own[1] if own else "")
    for group in (here, *here.parents):  # A container may not see its own; then the root is its.
        most, now = _text(group / "memory.max"), _text(group / "memory.current")
        if most.isdigit() and now.isdigit():  # It is "max" where there is no limit.
            free = min(free, max(0, int(most) - int(now)))
    return free


def amount(size: float) -> str:
    """Bytes in the unit that leaves few digits."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def _text(path: str | Path) -> str:
    """What a file of the kernel says, or nothing."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
