"""What this machine offers: torch and its devices, memory, disk, limits and terminal.

Everything only looks. One thing is tried rather than read, in a process of its own that ends by itself: torch, whose
import or driver may hang or crash. Left out: where agents' programs can run (`sandbox_check`).
"""

import json
import locale
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palaestra.cli.finding import Finding
from palaestra.cli.libraries import BASIC_EXTRA, findable

TORCH_SECONDS = 90.0
"""How long torch may take to be imported, to find its devices and to make one step of the tiny agent."""
_GIB = 2**30
_LOW_DISK = 2 * _GIB
"""A run of the tiny agent needs megabytes, one of a model of four billion parameters 16 GB."""

# A child ends by itself, even if we are killed: an alarm nobody handles.
_TORCH_CHILD = """
import json, os, signal
signal.alarm(int({seconds}) + 5)
os.environ.setdefault("OMP_NUM_THREADS", "1")
found = {{"failed": {{}}}}
for name in ("torch", "transformers", "tokenizers", "safetensors", "jinja2"):
    try:
        __import__(name)
    except BaseException as error:
        found["failed"][name] = type(error).__name__ + ": " + str(error).strip().split(chr(10))[0]
if "torch" not in found["failed"]:
    import torch
    found |= {{"version": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)}}
    found |= {{"threads": torch.get_num_threads(), "devices": []}}
    try:
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            found["devices"].append([about.name, about.total_memory, about.major, about.minor])
    except Exception as error:
        found["gpu_fault"] = str(error).strip().split(chr(10))[0]
if not found["failed"]:
    try:
        from palaestra.agents.policies.tiny import tiny_model
        model = tiny_model(32)
        model(input_ids=torch.arange(8)[None]).logits.sum().backward()
        found["step"] = True
    except BaseException as error:
        found["step_fault"] = type(error).__name__ + ": " + str(error).strip().split(chr(10))[0]
print(json.dumps(found))
"""


def torch_findings() -> Iterator[Finding]:
    """Whether the libraries of the basic path can be imported and make a step, and on which devices."""
    if not (findable("torch") and findable("transformers")):
        remedy = f"pip install 'palaestra[{BASIC_EXTRA}]'"
        yield Finding("basic path", "needs torch and transformers", "missing", remedy, vital=True)
        return
    try:
        found = ask(_TORCH_CHILD, TORCH_SECONDS)
    except subprocess.TimeoutExpired:
        text = f"importing torch and finding its devices took longer than {TORCH_SECONDS:g} s"
        yield Finding("torch", text, "broken", "look at the GPU's driver; CUDA_VISIBLE_DEVICES= hides it", vital=True)
        return
    except ChildProcessError as error:
        remedy = f"pip install --force-reinstall 'palaestra[{BASIC_EXTRA}]'"
        yield Finding("torch", f"ended its process: {error}", "broken", remedy, vital=True)
        return
    for name, reason in found["failed"].items():
        yield Finding(
            name, f"cannot be imported: {reason}", "broken", f"pip install --force-reinstall {name}", vital=True
        )
    if "version" in found:
        yield from _device_findings(found)
    if found.get("step"):
        yield Finding("basic path", "the tiny agent makes a step of training")
    elif "step_fault" in found:
        yield Finding("basic path", f"the tiny agent makes no step: {found['step_fault']}", "broken", vital=True)


def _device_findings(found: dict[str, Any]) -> Iterator[Finding]:
    """Build, devices and threads of torch."""
    build = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else ""
    yield Finding("torch build", f"for {build} and CPU" if build else "for CPU only")
    for number, (name, memory, major, minor) in enumerate(found["devices"]):
        yield Finding(f"GPU {number}", f"{name}, {memory / _GIB:.0f} GiB, capability {major}.{minor}")
    driver = Path("/proc/driver/nvidia/version").exists()
    if "gpu_fault" in found:
        yield Finding("GPU", f"torch cannot ask for it: {found['gpu_fault']}", "warning", "look at its driver")
    elif not found["devices"] and driver:
        remedy = "look at its driver" if build else "install a torch built for it"
        yield Finding("GPU", "there is a driver, but torch finds no GPU", "warning", remedy)
    elif not found["devices"]:
        yield Finding("GPU", "none; the tiny agent needs none", "missing")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("torch threads", f"{found['threads']}, on {cores} CPU cores")


def place_findings(folder: Path) -> Iterator[Finding]:
    """Whether the results of a run can be written, and how much room there is."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        yield Finding(str(folder), f"{there} is a file, not a folder", "broken", "go to another folder", vital=True)
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding(str(folder), f"no permission to write in {there}", "broken", "go to another folder", vital=True)
    else:
        free = shutil.disk_usage(there).free
        text = f"can be written; {_amount(free)} free"
        if free >= _LOW_DISK:
            yield Finding(str(folder), text)
        else:
            yield Finding(str(folder), text, "warning", "a model of 4 billion parameters takes 16 GB")


def memory_findings() -> Iterator[Finding]:
    """Main memory, as far as this process may use it."""
    total = _meminfo().get("MemTotal")
    if total is None:
        yield Finding("memory", "this system does not say", "missing")
    else:
        yield Finding("memory", f"{_amount(available_memory())} available of {_amount(total)}")


def available_memory() -> int:
    """Bytes that this process may still take: the kernel's estimate, or less where its control group has a limit."""
    free = _meminfo().get("MemAvailable", 0)
    group = _control_group()
    while group is not None and group.is_relative_to("/sys/fs/cgroup"):
        try:
            most = (group / "memory.max").read_text().strip()
            if most != "max":
                free = min(free, max(0, int(most) - int((group / "memory.current").read_text())))
        except (OSError, ValueError):
            pass
        group = group.parent
    return free


def limit_findings() -> Iterator[Finding]:
    """What this process and its children may use."""
    import resource  # Not there on every system.

    limits = {"processes": resource.RLIMIT_NPROC, "open files": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
    shown = {name: resource.getrlimit(which)[0] for name, which in limits.items()}
    text = ", ".join(f"{name} {'no limit' if n == resource.RLIM_INFINITY else n}" for name, n in shown.items())
    files = shown["open files"]
    few = files != resource.RLIM_INFINITY and files < 1024
    yield Finding("process limits", text, "warning" if few else "ok", "ulimit -n 4096" if few else "")


def terminal_findings() -> Iterator[Finding]:
    """What can be shown."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    remedy = "" if encoding == "utf8" else "set LANG=C.UTF-8 or PYTHONUTF8=1"
    text = f"output in {sys.stdout.encoding}, files in {locale.getencoding()}"
    yield Finding("locale", text, "warning" if remedy else "ok", remedy)
    if sys.stdout.isatty():
        size = shutil.get_terminal_size()
        yield Finding("terminal", f"{os.environ.get('TERM', 'of no name')}, {size.columns} columns")
    else:
        yield Finding("terminal", "output is no terminal: long stages print plain lines")


def ask(program: str, seconds: float) -> dict[str, Any]:
    """Run a child that prints one JSON object; ChildProcessError says how it ended instead."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program.format(seconds=int(seconds))],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
    )  # fmt: skip
    if done.returncode < 0:
        raise ChildProcessError(f"killed by {signal.Signals(-done.returncode).name}")
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChildProcessError(f"status {done.returncode}: {said[-1] if said else 'it said nothing'}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _control_group() -> Path | None:
    """Our group of version 2, as far as its folder can be seen from here."""
    root = Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    named = next((line[3:] for line in lines if line.startswith("0::")), None)
    if named is None or not (root / "cgroup.controllers").is_file():
        return None
    group = root / named.lstrip("/")
    return group if (group / "cgroup.controllers").is_file() else root


def _meminfo() -> dict[str, int]:
    """The kernel's figures of memory, in bytes; none on other systems than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}


def _amount(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"
