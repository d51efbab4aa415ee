"""Findings about this machine: torch and its devices, memory, disk, limits, and its sandboxes.

The checks change nothing on disk. One makes a training step in memory, one runs a small program. Left out: sandboxes on
other machines, and whether the guards really stop hostile programs, which `make prove` tests.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from palaestra.cli.finding import DoctorFinding, reason
from palaestra.cli.libraries import BASIC_EXTRA, findable
from palaestra.errors import Broken, MissingExtra, PalaestraError, SandboxUnavailable
from palaestra.trainers.scale.available_memory import amount, available_memory

LOCAL, DOCKER = "local sandbox", "docker sandbox"
_PROGRAM_SECONDS = 20.0
_LOW_DISK = 2 * 2**30
"""A run of the tiny agent needs megabytes, one of a model of four billion parameters 16 GB."""
_TRAINING = ("torch", "transformers", "tokenizers", "safetensors", "jinja2")


def torch_findings() -> Iterator[DoctorFinding]:
    """Yield findings: can the libraries of the basic path be imported and do a training step, and on which devices?"""
    if absent := [name for name in _TRAINING if not findable(name)]:
        remedy = f"pip install 'palaestra[{BASIC_EXTRA}]'"
        yield DoctorFinding("basic path", f"needs {', '.join(absent)}", "missing", remedy, vital=True)
        return
    for name in _TRAINING:
        try:
            import_module(name)
        except Exception as error:  # An incomplete library may raise any error.
            remedy = f"pip install --force-reinstall {name}"
            yield DoctorFinding(name, f"cannot be imported: {reason(error)}", "broken", remedy, vital=True)
            return
    import torch

    from palaestra.agents.policies.tiny import tiny_model

    yield from _device_findings()
    try:
        tiny_model(32)(input_ids=torch.arange(8)[None]).logits.sum().backward()
    except Exception as error:
        yield DoctorFinding("basic path", f"the tiny agent takes no step: {reason(error)}", "broken", vital=True)
    else:
        yield DoctorFinding("basic path", "the tiny agent takes a training step")


def _device_findings() -> Iterator[DoctorFinding]:
    """Yield findings on the build, devices and threads of torch."""
    import torch

    hip = getattr(torch.version, "hip", None)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {hip}" if hip else ""
    yield DoctorFinding("torch build", f"for {build} and CPU" if build else "for CPU only")
    gpus, wrong = [], ""
    try:
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        if not gpus and Path("/proc/driver/nvidia/version").exists():
            wrong = "there is a driver, but torch finds no GPU"
    except Exception as error:  # A driver may raise any error.
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
    """Yield a finding: can the results of a run be written, and how much disk is free?"""
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
    """Yield a finding on the main memory: how much there is, and how much of it this process may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = available_memory()
    yield DoctorFinding("memory", f"{amount(free) if free else 'an unknown part'} available of {amount(total)}")


def limit_findings() -> Iterator[DoctorFinding]:
    """Yield a finding on the limits of this process and its children."""
    import resource  # Some systems lack it.

    limits = {"processes": resource.RLIMIT_NPROC, "open files": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
    values = {name: resource.getrlimit(which)[0] for name, which in limits.items()}
    text = ", ".join(f"{name} {'no limit' if n == resource.RLIM_INFINITY else n}" for name, n in values.items())
    few = 0 <= values["open files"] < 1024
    yield DoctorFinding("process limits", text, "warning" if few else "ok", "ulimit -n 4096" if few else "")


def local_sandbox_findings() -> Iterator[DoctorFinding]:
    """Yield findings on the local sandbox: what it enforces on this machine, or why it is not available."""
    from palaestra.envs.sandboxes import open_sandbox

    try:
        with open_sandbox("local") as sandbox:
            ran = sandbox.run_once("print(6 * 7)", timeout=_PROGRAM_SECONDS)
            guards = asdict(sandbox.capabilities())
    except (SandboxUnavailable, Broken) as error:
        yield _refusal(LOCAL, error)
        return
    if ran.stdout != "42\n":
        yield DoctorFinding(
            LOCAL, f"it opens, but runs no program: {ran.limit_hit or ran.stderr.strip()[-300:]}", "broken"
        )
        return
    notes, _ = guards.pop("notes"), guards.pop("backend")
    there = ", ".join(name if value is True else f"{name} {value}" for name, value in guards.items() if value)
    absent = ", ".join(name for name, value in guards.items() if not value)
    text = f"runs programs; guards: {there}" + (f"; without {absent}" if absent else "")
    yield DoctorFinding(LOCAL, text, "warning" if notes else "ok")
    for note in notes:
        yield DoctorFinding(f"{LOCAL}, weaker", note, "warning")


def docker_findings() -> Iterator[DoctorFinding]:
    """Yield findings on the container engine: whether it answers, and which of our images it has."""
    from palaestra.envs.sandboxes.docker import images
    from palaestra.envs.sandboxes.docker.connection import DockerConnection

    try:
        engine = DockerConnection(None)
    except (SandboxUnavailable, MissingExtra) as error:
        yield _refusal(DOCKER, error)
        return
    name, runtimes = "Podman" if engine.is_podman else "Docker", ", ".join(sorted(engine.info.get("Runtimes") or ()))
    yield DoctorFinding(DOCKER, f"{name} {engine.info.get('ServerVersion')} answers; runtimes: {runtimes or 'its own'}")
    with engine.client() as api:
        for image in images.PURPOSES:
            try:
                images.check(api, image)
                yield DoctorFinding(f"docker image {image}", "is there")
            except SandboxUnavailable as error:
                yield _refusal(f"docker image {image}", error)


def _refusal(about: str, error: PalaestraError) -> DoctorFinding:
    """Return the finding for a sandbox's error. Its first line says what is missing, its other lines what helps."""
    missing, *remedies = str(error).splitlines()
    return DoctorFinding(
        about, missing.partition("': ")[2] or missing, "missing", "; or ".join(map(str.strip, remedies))
    )
