"""Measure the free memory of the device and of this computer, and the free space on the disk."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_FRAGMENTS = 0.05
"""Share of GPU memory that is lost to fragmentation."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that a run may use, in bytes."""

    device: int
    """Memory of the model's device; 0 if unknown."""
    host: int
    """Main memory, if the device is a GPU; 0 if unknown."""
    on_gpu: bool
    name: str = "this machine"
    """Name of the device."""
    ranks: int = 1
    """Number of such devices among which the model is divided."""


def room_of(device: "torch.device") -> Room:
    """Return the memory that is free now on a device, and if it is a GPU, in main memory."""
    if device.type != "cuda":
        return Room(available_memory(), 0, False)
    import torch  # Imported here: `palaestra doctor` uses this module on machines without torch.

    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    name = torch.cuda.get_device_properties(device).name
    return Room(round(free * (1 - _FRAGMENTS)), available_memory(), True, name)


def gpu_room(size: float, host: int = 0) -> Room:
    """Return the memory of an empty GPU of `size` GB (10^9 bytes)."""
    return Room(round(size * 1e9 * (1 - _FRAGMENTS)), host, True, f"a GPU of {size:g} GB")


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def available_memory() -> int:
    """Return the bytes that this process may still use, by the kernel's estimate and cgroup limits; 0 if unknown."""
    match = re.search(r"^MemAvailable: +(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    free = int(match[1]) * 1024 if match else 0
    cgroup = re.search("^0::/(.*)$", _text("/proc/self/cgroup"), re.MULTILINE)
    here = Path("/sys/fs/cgroup", cgroup[1] if cgroup else "")
    for group in (here, *here.parents):  # In a container the path may be hidden; then the root is its cgroup.
        limit, now = _text(group / "memory.max"), _text(group / "memory.current")
        if limit.isdigit() and now.isdigit():  # The text is "max" if there is no limit.
            free = min(free, max(0, int(limit) - int(now)))
    return free


def amount(size: float) -> str:
    """Format a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def _text(path: str | Path) -> str:
    """Return the text of a kernel file; "" if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
