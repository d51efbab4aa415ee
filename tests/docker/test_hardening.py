"""What keeps a program in its container: tried from inside, and read from the engine.

Left out: memory, processes and files without end, and what kills all it may, which are hostile programs (tests/prove).
"""

import json
from typing import Any

import pytest

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.docker import DockerSandbox, hardening
from palaestra.envs.sandboxes.docker.owners import LABEL
from palaestra.envs.sandboxes.runner import seccomp

CALLS = """
import ctypes, json, socket
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, first in CALLS:
    outcome = libc.syscall(number, first, 0, 0, 0, 0)
    found[name] = ctypes.get_errno() if outcome == -1 else 0
for family in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK"):
    try:
        socket.socket(getattr(socket, family), socket.SOCK_DGRAM)
    except OSError as error:
        found[family] = error.errno
    else:
        found[family] = 0
lines = [line.split() for line in open("/proc/self/status")]
found["status"] = {line[0].rstrip(":"): line[1] for line in lines if len(line) > 1}
print(json.dumps(found))
"""
REFUSED = {"io_uring_setup": 425, "bpf": 321, "keyctl": 250, "ptrace": 101, "mount": 165, "unshare": 272, "shmget": 29,
           "perf_event_open": 298, "userfaultfd": 323, "open_by_handle_at": 304}  # fmt: skip
EPERM, ENOSYS = 1, 38


def numbers_of_x86() -> list[tuple[str, int, int]]:
    return [*((name, number, 0) for name, number in REFUSED.items()), ("clone", 56, 0x10000000), ("clone3", 435, 0)]


@pytest.mark.docker
def test_the_container_alone_refuses_what_the_runner_refuses(docker_sandbox: DockerSandbox, engine: Any) -> None:
    """By an exec beside the runner, whose own filter is not on it: the outer wall stands by itself."""
    if engine.info()["Architecture"] != "x86_64":
        pytest.skip("the numbers are those of x86-64")
    with docker_sandbox.start():
        container = engine.containers(filters={"label": LABEL})[0]["Id"]
        words = ["python3", "-c", CALLS.replace("CALLS", repr(numbers_of_x86()))]
        found = json.loads(engine.exec_start(engine.exec_create(container, words)["Id"]))
    assert {name: found[name] for name in REFUSED} == dict.fromkeys(REFUSED, EPERM)
    assert found["clone"] == EPERM, "a namespace could be made"
    assert found["clone3"] == ENOSYS, "libc would not fall back to clone"
    assert {found[family] for family in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK")} <= {EPERM, 97}
    status = found["status"]
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["Uid"]) >= 10_000


@pytest.mark.docker
def test_nothing_but_the_scratch_can_be_written_and_nothing_of_the_host_is_there(docker_sandbox: DockerSandbox) -> None:
    done = docker_sandbox.run_once("""
import os, sys
places = ["/", "/usr", "/etc", "/opt/palaestra/runner", "/dev", "/dev/shm", "/var/tmp", "/run", "/sys/fs/cgroup",
          os.path.dirname(os.__file__)]
for place in places:
    try:
        open(place + "/mark", "w")
        print("written:", place)
    except OSError:
        pass
open("here", "w"), open("/tmp/there", "w")
print(os.listdir("/root") if os.access("/root", os.R_OK) else "", os.path.exists("/var/run/docker.sock"))
print([name for name in os.listdir("/dev") if name in ("vda", "sda", "kvm", "fuse", "nvidia0", "kmsg", "mem")])
print(sorted(os.environ), sum(name.isdigit() for name in os.listdir("/proc")) < 8)
""")
    assert "written" not in done.stdout, done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] in (" False", "[] False")
    assert lines[1] == "[]"
    assert lines[2].endswith("True")
    assert "DOCKER_HOST" not in lines[2]


@pytest.mark.docker
def test_the_engine_was_told_every_limit(docker_sandbox: DockerSandbox, engine: Any) -> None:
    with docker_sandbox.start():
        for container in engine.containers(filters={"label": LABEL}):
            held = engine.inspect_container(container["Id"])["HostConfig"]
            limits = docker_sandbox.limits
            assert held["NetworkMode"] == "none"
            assert held["IpcMode"] == "none"
            assert held["ReadonlyRootfs"]
            assert held["AutoRemove"]
            assert held["CapDrop"] == ["ALL"]
            assert not held["Privileged"]
            assert not held["Binds"]
            assert held["Memory"] == held["MemorySwap"] == limits.memory_bytes + hardening.RUNNER_BYTES
            assert held["PidsLimit"] == limits.processes + hardening.RUNNER_PROCESSES


@pytest.mark.docker
def test_capabilities_are_what_the_container_gives(docker_sandbox: DockerSandbox) -> None:
    found = docker_sandbox.capabilities()
    found.require("files", "network", "processes", "process_count", "memory", "syscalls", "own_user")
    assert found.memory == "tree"
    assert not found.forks
    assert any("runsc" in note for note in found.notes)


def test_the_engines_filter_is_the_runners_list() -> None:
    profile = json.loads(hardening.seccomp_profile("x86_64"))
    named = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert set(seccomp.REFUSED) <= named
    assert all(rule["action"] == "SCMP_ACT_ERRNO" for rule in profile["syscalls"])
    assert profile["architectures"] == ["SCMP_ARCH_X86_64"], "32-bit calls have other numbers and must be killed"


def test_limits_reach_the_engines_settings() -> None:
    class Api:
        def create_host_config(self, **settings: Any) -> dict[str, Any]:
            return settings

    limits = Limits(scratch_bytes=12345, scratch_files=10)
    given = {"user": 20000, "profile": "{}", "runtime": "runsc", "cpus": 1.5}
    made = hardening.host_config(Api(), limits, podman=False, **given)
    assert "size=12345" in made["tmpfs"]["/tmp"]
    assert "nr_inodes=14" in made["tmpfs"]["/tmp"]
    assert made["nano_cpus"] == 1_500_000_000
    assert made["runtime"] == "runsc"
    podman = hardening.host_config(Api(), limits, podman=True, **given)
    assert "nr_inodes" not in podman["tmpfs"]["/tmp"], "Podman refuses to start with it"
    assert podman["tmpfs"]["/run"].startswith("ro,"), "Podman would make it writable and without bounds"
