"""What this machine offers: torch and its devices, memory, disk, limits and letters.

Everything only looks, but for one step of training in memory. Left out: where agents' programs can run
(`sandbox_check`).
"""

import locale
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from palaestra.cli.finding import DoctorFinding, reason
from palaestra.cli.libraries import BASIC_EXTRA, findable
from palaestra.trainers.scale.available_memory import amount, available_memory

_LOW_DISK = 2 * 2**30
"""A run of the tiny agent needs megabytes, one of a model of four billion parameters 16 GB."""
_TRAINING = ("torch", "transformers", "tokenizers", "safetensors", "jinja2")


def torch_findings() -> Iterator[DoctorFinding]:
    """Whether the libraries of the basic path can be imported and make a step, and on which devices."""
    if absent := [name for name in _TRAINING if not findable(name)]:
        remedy = f"pip install 'palaestra[{BASIC_EXTRA}]'"
        yield DoctorFinding("basic path", f"needs {', '.join(absent)}", "missing", remedy, vital=True)
        return
    for name in _TRAINING:
        try:
            import_module(name)
        except Exception as error:  # A library that is half there fails in its own way.
            remedy = f"pip install --force-reinstall {name}"
            yield DoctorFinding(name, f"cannot be imported: {reason(error)}", "broken", remedy, vital=True)
            return
    import torch

    from palaestra.agents.policies.tiny import tiny_model

    yield from _device_findings()
    try:
        tiny_model(32)(input_ids=torch.arange(8)[None]).logits.sum().backward()
    except Exception as error:
        yield DoctorFinding("basic path", f"the tiny agent makes no step: {reason(error)}", "broken", vital=True)
    else:
        yield DoctorFinding("basic path", "the tiny agent makes a step of training")


def _device_findings() -> Iterator[DoctorFinding]:
    """Build, devices and threads of torch."""
    import torch

    hip = getattr(torch.version, "hip", None)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {hip}" if hip else ""
    yield DoctorFinding("torch build", f"for {build} and CPU" if build else "for CPU only")
    gpus, wrong = [], ""
    try:
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        if not gpus and Path("/proc/driver/nvidia/version").exists():
            wrong = "there is a driver, but torch finds no GPU"
    except Exception as error:  # Whatever the driver is pleased to say.
        wrong = f"torch cannot ask for it: {reason(error)}"
    for number, gpu in enumerate(gpus):
        text = f"{gpu.name}, {amount(gpu.total_memory)}, capability {gpu.major}.{gpu.minor}"
        yield DoctorFinding(f"GPU {number}", text)
    if wrong:
        yield DoctorFinding("GPU", wrong, "warning", "look at its driver" if build else "install a torch built for it")
    elif not gpus:
        yield DoctorFinding("GPU", "none; the tiny agent needs none", "missing")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield DoctorFinding("torch threads", f"{torch.get_num_threads()}, on {cores} CPU cores")


def place_findings(folder: Path = Path("runs")) -> Iterator[DoctorFinding]:
    """Whether the results of a run can be written, and how much room there is."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    wrong = f"{there} is a file, not a folder" if not there.is_dir() else ""
    if not os.access(there, os.W_OK | os.X_OK):
        wrong = wrong or f"no permission to write in {there}"
    if wrong:
        yield DoctorFinding(str(folder), wrong, "broken", "go to another folder", vital=True)
        return
    free = shutil.disk_usage(there).free
    remedy = "a model of 4 billion parameters takes 16 GB" if free < _LOW_DISK else ""
    yield DoctorFinding(str(folder), f"can be written; {amount(free)} free", "warning" if remedy else "ok", remedy)


def memory_findings() -> Iterator[DoctorFinding]:
    """Main memory, as far as this process may use it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = available_memory()
    yield DoctorFinding("memory", f"{amount(free) if free else 'an unknown part'} available of {amount(total)}")


def limit_findings() -> Iterator[DoctorFinding]:
    """What this process and its children may use."""
    import resource  # Not there on every system.

    limits = {"processes": resource.RLIMIT_NPROC, "open files": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
    shown = {name: resource.getrlimit(which)[0] for name, which in limits.items()}
    text = ", ".join(f"{name} {'no limit' if n == resource.RLIM_INFINITY else n}" for name, n in shown.items())
    few = 0 <= shown["open files"] < 1024
    yield DoctorFinding("process limits", text, "warning" if few else "ok", "ulimit -n 4096" if few else "")


def locale_findings() -> Iterator[DoctorFinding]:
    """Which letters can be shown."""
    remedy = "" if sys.stdout.encoding.lower() in ("utf-8", "utf8") else "set LANG=C.UTF-8 or PYTHONUTF8=1"
    text = f"output in {sys.stdout.encoding}, files in {locale.getencoding()}"
    yield DoctorFinding("locale", text, "warning" if remedy else "ok", remedy)
