"""A private container engine for `make test-docker`, with the sandbox images in it.

    engine.py run -- COMMAND    start, run the command with DOCKER_HOST set, stop; exits as the command did
    engine.py start             start and leave it running; the last line is `DOCKER_HOST=unix:///tmp/.../docker.sock`
    engine.py stop FOLDER       stop it and remove its folder, which is the socket's

It needs root or sudo. What is missing (docker.io, runc, a C++ compiler, Node) is installed with Debian's apt-get. An
engine that is on this machine is left alone: this one has a folder, a socket and a network policy (none) of its own.
The images are built by the same Dockerfiles that users build from, on a base made of this machine's files
(`base_image.py`), so no registry is asked. `--bare` skips the images; `--runsc` adds gVisor's runtime.
"""

import argparse
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

PROGRAMS = {"dockerd": "docker.io", "runc": "runc", "g++": "g++", "node": "nodejs"}
LIBRARIES = ("pip", "numpy", "sympy")
INSTALL_SECONDS, START_SECONDS, STOP_SECONDS, UNMOUNT_SECONDS = 1800, 180, 30, 30
UPDATES = 4
ROOM_BYTES = 4 * 2**30
"""For the images, and what the tests write in containers."""
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
PR_SET_PDEATHSIG = 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "start", "stop"))
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--runsc", action="store_true")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    rest = given.rest[1:] if given.rest[:1] == ["--"] else given.rest
    if given.action == "stop":
        if len(rest) != 1 or not (Path(rest[0]) / "pid").is_file():
            stop_here(f"no engine lives in {' '.join(rest) or 'no folder'}", "name the folder that `start` printed")
        return stop(Path(rest[0]))
    if given.action == "run" and not rest:
        stop_here("there is nothing to run", "engine.py run -- COMMAND")
    become_root()
    install(given.runsc)
    if shutil.disk_usage("/tmp").free < ROOM_BYTES:
        stop_here(f"/tmp has less than {ROOM_BYTES >> 30} GiB free, and the engine lives there", "make room")
    # A short name: the path of a socket holds 107 bytes, and containers get some of their own below it.
    folder = Path(tempfile.mkdtemp(prefix="pal-docker-", dir="/tmp"))
    # A stopped `run` stops its engine as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        host = start(folder, bound=given.action == "run", runsc=given.runsc)
        if not given.bare:
            build(host, folder)
        if given.action == "start":
            print(f"DOCKER_HOST={host}")
            return 0
        code = subprocess.run(rest, env={**os.environ, "DOCKER_HOST": host}, check=False, **caller()).returncode
    except BaseException:
        stop(folder)
        raise
    stop(folder)
    return code


def become_root():
    """Start again under sudo; the command of `run` stays the caller's."""
    if os.geteuid() == 0:
        return
    if shutil.which("sudo") is None:
        stop_here("a container engine needs root", "run it as root, or install sudo")
    os.execvp("sudo", ["sudo", "-n", "-E", sys.executable, *sys.argv])


def caller():
    """Who asked sudo for this, as arguments of subprocess.run."""
    if "SUDO_UID" not in os.environ:
        return {}
    return {"user": int(os.environ["SUDO_UID"]), "group": int(os.environ["SUDO_GID"]), "extra_groups": []}


def install(runsc):
    """The programs that are not there yet."""
    wanted = {**PROGRAMS, "runsc": "runsc"} if runsc else PROGRAMS
    packages = sorted({package for program, package in wanted.items() if shutil.which(program, path=PATH) is None})
    if not packages:
        return
    if shutil.which("apt-get") is None:
        stop_here(f"absent: {', '.join(packages)}, and there is no apt-get", "install them, then again")
    say(f"installing {' '.join(packages)} with apt-get")
    # Another apt-get may hold the lock of the lists, for which no time-out of its own holds.
    if not any(apt_get("update") or time.sleep(15) for _ in range(UPDATES)):
        stop_here("apt-get update failed (see above)", "is the Debian mirror reachable?")
    if not apt_get("install", "--no-install-recommends", *packages):
        stop_here("apt-get install failed (see above)", "is the Debian mirror reachable?")


def apt_get(*words):
    """Whether it succeeded."""
    patient = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-y", "-qq", *patient, *words]
    try:
        return subprocess.run(command, env=quiet, stdout=sys.stderr, timeout=INSTALL_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        say(f"apt-get {words[0]} did not end within {INSTALL_SECONDS} s")
        return False


def start(folder, bound, runsc=False):
    """Start dockerd with its own everything; `bound`: it ends when this process does. The address of its socket."""
    settings = {
        "data-root": str(folder / "data"),
        "exec-root": str(folder / "exec"),
        "pidfile": str(folder / "pid"),
        "hosts": [f"unix://{folder}/docker.sock"],
        "group": os.environ.get("SUDO_GID", "0"),
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "userland-proxy": False,
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
    }
    if runsc:
        words = ["--platform=ptrace", "--network=none", "--ignore-cgroups"]
        settings["runtimes"] = {"runsc": {"path": shutil.which("runsc", path=PATH), "runtimeArgs": words}}
    (folder / "settings.json").write_text(json.dumps(settings))
    folder.chmod(0o755)
    libc = ctypes.CDLL(None, use_errno=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [shutil.which("dockerd", path=PATH), "--config-file", str(folder / "settings.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": PATH},
            start_new_session=True,
            # dockerd takes its own children down in good order on this signal.
            preexec_fn=(lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)) if bound else None,
        )
    deadline = time.monotonic() + START_SECONDS
    while not answers(folder / "docker.sock"):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (folder / "log").read_text(errors="replace")[-2000:]
            stop_here(f"dockerd did not start:\n{tail}", "is this machine allowed to run containers (cgroups, mounts)?")
        time.sleep(0.05)
    return f"unix://{folder}/docker.sock"


def answers(path):
    """Whether an engine answers on a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            response = http.client.HTTPResponse(connection)
            response.begin()
        except (OSError, http.client.HTTPException):
            return False
        return response.status == 200


def build(host, folder):
    """The images, on layers of this machine's files instead of the distribution that users build on."""
    import base_image
    import docker

    from palaestra.envs.sandboxes.docker import images

    begun = time.monotonic()
    layer = str(folder / "layer.tar")
    with closing(docker.DockerClient(base_url=host, timeout=images.BUILD_SECONDS)) as client:
        base_image.interpreter(layer, LIBRARIES)
        took = {"repository": "palaestra/base", "changes": ["ENV PATH=/usr/local/bin:/usr/bin"]}
        client.api.import_image_from_file(layer, tag="python", **took)
        base_image.interpreter(layer, (), ("g++", "nodejs"))
        client.api.import_image_from_file(layer, tag="judge", **took)
        os.unlink(layer)
        for name, base in (("runner", "python"), ("python", "python"), ("judge", "judge")):
            images.build(client, name, base=f"palaestra/base:{base}")
    say(f"images built in {time.monotonic() - begun:.0f} s")


def stop(folder):
    """End the engine by its pid and remove its folder."""
    try:
        pid = int((folder / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while running(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                break
            time.sleep(0.05)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass  # it never came up, or is gone
    deadline = time.monotonic() + UNMOUNT_SECONDS
    while time.monotonic() < deadline:  # mounts below it may need a moment to go
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return 0
        time.sleep(0.1)
    say(f"{folder} could not be removed")
    return 1


def running(pid):
    """Whether a process is there, and no zombie; our own child is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return Path(f"/proc/{pid}").exists()


def say(text):
    print(f"engine: {text}", file=sys.stderr, flush=True)


def stop_here(found, remedy):
    say(f"{found}\n  {remedy}")
    raise SystemExit(2)


if __name__ == "__main__":
    raise SystemExit(main())
