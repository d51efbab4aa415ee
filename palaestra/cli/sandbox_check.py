"""Where agents' programs can run on this machine: each sandbox is opened, or its engine asked, and says itself.

Each is tried in a process of its own that ends by itself, since a kernel or a daemon may hang. Left out: sandboxes on
other machines, and whether what a guard stops is really stopped, which `make prove` tries with hostile programs.
"""

import subprocess
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from palaestra.cli.finding import Finding
from palaestra.cli.machine import ask

LOCAL_SECONDS = 30.0
"""How long the local sandbox may take to open, to run a program and to close; it takes less than one."""
DOCKER_SECONDS = 15.0
"""How long a container engine may take to answer a few questions."""
LOCAL, DOCKER = "local sandbox", "docker sandbox"

# A child ends by itself, even if we are killed: an alarm nobody handles.
_LOCAL_CHILD = """
import dataclasses, json, signal
signal.alarm({seconds})
from palaestra.envs.sandboxes import open_sandbox
from palaestra.errors import Broken, SandboxUnavailable
try:
    with open_sandbox("local") as sandbox:
        ran = sandbox.run_once("print(6 * 7)", timeout={seconds})
        found = {{"guards": dataclasses.asdict(sandbox.capabilities())}}
        if ran.stdout != "42\\n":
            found = {{"refused": ["it opens, but runs no program: " + (ran.limit_hit or ran.stderr.strip()[-300:])]}}
except (SandboxUnavailable, Broken) as error:
    found = {{"refused": str(error).splitlines()}}
print(json.dumps(found))
"""
_DOCKER_CHILD = """
import json, signal
signal.alarm({seconds})
from palaestra.envs.sandboxes.docker import images
from palaestra.envs.sandboxes.docker.connection import Connection
from palaestra.errors import MissingExtra, SandboxUnavailable
def refusal(check, *given):
    try:
        check(*given)
    except SandboxUnavailable as error:
        return str(error).splitlines()
    return []
try:
    engine = Connection(None)
except SandboxUnavailable as error:
    found = {{"refused": str(error).splitlines()}}
except MissingExtra as error:
    found = {{"refused": str(error).rsplit(": ", 1)}}
else:
    found = {{"podman": engine.is_podman, "version": engine.info.get("ServerVersion")}}
    found["runtimes"] = sorted(engine.info.get("Runtimes") or {{}})
    with engine.client() as api:
        found["images"] = {{name: refusal(images.check, api, name) for name in images.PURPOSES}}
print(json.dumps(found))
"""


def local_findings() -> Iterator[Finding]:
    """What the local sandbox enforces here, and in its own words what is weaker, or why it cannot be had."""
    found = yield from _tried(LOCAL, _LOCAL_CHILD, LOCAL_SECONDS)
    if found is None:
        return
    guards = {name: value for name, value in found["guards"].items() if name not in ("backend", "notes")}
    there = [name if value is True else f"{name} {value}" for name, value in guards.items() if value]
    absent = [name for name, value in guards.items() if not value]
    text = f"runs programs; guards: {', '.join(there)}" + (f"; without {', '.join(absent)}" if absent else "")
    notes = found["guards"]["notes"]
    yield Finding(LOCAL, text, "warning" if notes else "ok")
    for note in notes:
        yield Finding(f"{LOCAL}, weaker", note, "warning")


def docker_findings() -> Iterator[Finding]:
    """Whether a container engine answers, and which of our images it has."""
    found = yield from _tried(DOCKER, _DOCKER_CHILD, DOCKER_SECONDS)
    if found is None:
        return
    name = "Podman" if found["podman"] else "Docker"
    yield Finding(DOCKER, f"{name} {found['version']} answers; runtimes: {', '.join(found['runtimes']) or 'its own'}")
    for image, refused in found["images"].items():
        yield _refusal(f"docker image {image}", refused) if refused else Finding(f"docker image {image}", "is there")


def _tried(about: str, child: str, seconds: float) -> Generator[Finding, None, dict[str, Any] | None]:
    """What a child found, or None where it has been said why there is nothing."""
    try:
        found = ask(child, seconds)
    except subprocess.TimeoutExpired:
        yield Finding(about, f"did not answer within {seconds:g} s", "warning")
    except ChildProcessError as error:
        yield Finding(about, f"the process that tried it ended: {error}", "warning")
    else:
        if "refused" not in found:
            return found
        yield _refusal(about, found["refused"])
    return None


def _refusal(about: str, lines: Sequence[str]) -> Finding:
    """What a backend raised: the first line says what is missing, each other one what would bring it."""
    missing = lines[0].partition("': ")[2] or lines[0]
    return Finding(about, missing, "missing", "; or ".join(line.strip() for line in lines[1:]))
