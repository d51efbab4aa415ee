"""Control groups: really, where they can be had, and version 2 against a tree of folders that acts like the kernel."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from settling import alive, soon

from palaestra.envs.sandboxes.runner import cgroups, hierarchies, watching
from palaestra.envs.sandboxes.runner.syscalls import Unavailable

LIMITS = {"memory_bytes": 48 * 2**20, "processes": 4}
FILES = dict.fromkeys(("cgroup.procs", "cgroup.subtree_control", "cpu.stat", "cgroup.kill"), "")
FILES |= dict.fromkeys(("memory.max", "memory.swap.max", "pids.max"), "max")
FILES |= {"pids.events": "max 0\n", "memory.events": "low 0\noom 1\noom_kill 0\n"}


@pytest.fixture
def groups():
    try:
        found = cgroups.find()
    except Unavailable as error:
        pytest.skip(str(error))
    yield found
    found.close()
    assert not owned(found._mounts, hierarchies.owner_name())


def owned(mounts: list[Path], owner: str) -> list[str]:
    """The folders of an owner; others come and go meanwhile, which a walk does not mind."""
    return [folder for mount in mounts for folder, names, _ in os.walk(mount) if owner in names]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """`tree(controllers, handed_out)`: a version 2 hierarchy with this process in /user/mine."""
    mount, process = tmp_path / "mount", tmp_path / "process"
    make, take_away = os.mkdir, os.rmdir

    def mkdir(path: Path, *rest) -> None:
        make(path, *rest)
        if mount in Path(path).parents:
            controllers = (Path(path).parent / "cgroup.subtree_control").read_text().replace("+", "")
            for name, text in (FILES | {"cgroup.controllers": controllers}).items():
                (Path(path) / name).write_text(text)

    def rmdir(path: Path, **rest) -> None:
        if mount in Path(path).parents:  # the kernel's files go with their folder
            for name in [*FILES, "cgroup.controllers"]:
                (Path(path) / name).unlink(missing_ok=True)
        take_away(path, **rest)

    def write(path: Path, value: object) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        if path.name == "cgroup.procs":  # a process is in one group
            for other in mount.rglob("cgroup.procs"):
                other.write_text(" ".join(word for word in other.read_text().split() if word != value))
            value = f"{path.read_text()} {value}"
        path.write_text(str(value))

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "rmdir", rmdir)
    for module in (hierarchies, cgroups):
        monkeypatch.setattr(module, "write", write)

    def grow(controllers: str, handed_out: str = "") -> tuple[Path, str]:
        make(process)
        (process / "cgroup").write_text("0::/user/mine\n")
        (process / "mountinfo").write_text(f"30 20 0:9 / {mount} rw - cgroup2 cgroup2 rw\n")
        make(mount)
        (mount / "cgroup.subtree_control").write_text(controllers)
        mkdir(mount / "user")
        (mount / "user/cgroup.subtree_control").write_text(handed_out)
        mkdir(mount / "user/mine")
        (mount / "user/mine/cgroup.controllers").write_text(controllers)
        (mount / "user/mine/cgroup.procs").write_text("1 2")
        (mount / "cgroup.subtree_control").write_text("")
        return mount, str(process)

    return grow


def test_version_2_a_group_s_processes_move_to_a_leaf_so_that_it_can_hand_out_controllers(tree):
    mount, process = tree("cpu memory pids")
    found = cgroups.find(process)
    mine = mount / "user/mine"
    assert (mine / "palaestra-members/cgroup.procs").read_text().split() == ["1", "2"]
    assert (mine / "cgroup.procs").read_text().split() == []
    assert (mine / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    group = found.create("session", LIMITS)
    folder = mine / hierarchies.owner_name() / "session"
    written = [(folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")]
    assert written == [str(LIMITS["memory_bytes"]), "0", "5"]
    (folder / "memory.events").write_text("oom 7\noom_kill 3\n")
    (folder / "pids.events").write_text("max 9\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    assert (group.oom_kills(), group.pids_hits(), group.cpu_seconds()) == (3, 9, 2.5)
    group.kill()
    assert (folder / "cgroup.kill").read_text() == "1"
    assert group.remove() and not folder.exists()
    found.close()
    assert not (mine / hierarchies.owner_name()).exists()


def test_version_2_a_group_on_the_way_up_that_hands_them_out_is_taken_and_nothing_is_moved(tree):
    mount, process = tree("memory pids", handed_out="cpu memory pids")
    cgroups.find(process)
    assert (mount / "user" / hierarchies.owner_name()).is_dir()
    assert (mount / "user/mine/cgroup.procs").read_text() == "1 2"


def test_version_2_without_a_controller_is_refused_with_its_name_and_what_brings_it(tree):
    _, process = tree("cpu pids")
    with pytest.raises(Unavailable, match=r"no controller memory.*Delegate=yes"):
        cgroups.find(process)


def test_an_owner_is_known_by_pid_and_start_so_only_groups_of_the_dead_are_swept(tree):
    mount, process = tree("memory pids", handed_out="cpu memory pids")
    found = cgroups.find(process)
    alive = hierarchies.owner_name()
    name, namespace, pid, start = alive.split("-")
    dead = f"{name}-{namespace}-{pid}-{int(start) + 1}"  # the pid was given out anew
    elsewhere = f"{name}-{int(namespace) + 1}-{pid}-{int(start) + 1}"  # another pid namespace: not for us to judge
    for folder in (dead, elsewhere):
        os.mkdir(mount / "user" / folder)
        os.mkdir(mount / "user" / folder / "session")
    assert found.sweep() == 1
    assert {path.name for path in (mount / "user").glob("palaestra-*")} == {alive, elsewhere}


def test_the_kernel_counts_the_whole_tree_and_tells_of_its_kills(groups):
    group = groups.create("eaters", LIMITS)
    # 36 MiB each: either alone would do. The child holds its own until the parent has taken as much, or has died.
    program = """
import os, sys
sys.stdin.read(1)
(held, holds), (done, parent) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(parent)
    own = bytearray(36 << 20)
    os.write(holds, b'x'), os.read(done, 1)
    os._exit(0)
os.close(holds), os.read(held, 1)
own = bytearray(36 << 20)
os.close(parent), os.wait()
"""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        process.communicate(b"x", timeout=60)
    assert group.oom_kills() >= 1
    soon(lambda: group.remove(1.0))


def test_forks_beyond_the_limit_are_refused_and_counted_and_all_are_killed_at_once(groups):
    group = groups.create("forkers", LIMITS)
    descriptors = group.join_descriptors()
    program = (
        "import os, signal, sys\n"
        f"for descriptor in {descriptors}: os.write(descriptor, b'0')\n"
        "try:\n"
        "    while os.fork(): pass\n"
        "except BlockingIOError: os.write(1, b'full')\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=descriptors) as process:
        assert process.stdout.read(4) == b"full"
        assert group.pids_hits() >= 1
        assert len(group.processes()) == LIMITS["processes"] + 1
        assert set(watching.tree(process.pid)) == set(group.processes())
        group.kill()
        assert process.wait(60) == -signal.SIGKILL
    soon(lambda: group.processes() == [])  # its children are nobody's whom we could wait for
    soon(lambda: group.remove(1.0))
    for descriptor in descriptors:
        os.close(descriptor)


def test_groups_of_a_killed_owner_are_swept_with_what_is_in_them(groups):
    folder = Path(__file__).resolve().parents[3] / "envs" / "sandboxes"
    program = (
        f"import sys, subprocess; sys.path.insert(0, {str(folder)!r})\n"
        "from runner import cgroups, hierarchies\n"
        "group = cgroups.find().create('left', {'memory_bytes': 1 << 26, 'processes': 9})\n"
        "child = subprocess.Popen(['sleep', '300']); group.add(child.pid)\n"
        "print(child.pid, hierarchies.owner_name(), flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], **pipes) as owner:
        left, name = owner.stdout.readline().decode().split()
        assert owned(groups._mounts, name) and alive(int(left))
        owner.kill()
        owner.wait(60)
        # Another sandbox of this machine that opens just now sweeps them as well, and may have come first.
        assert groups.sweep() or not owned(groups._mounts, name)
    soon(lambda: (groups.sweep(), not alive(int(left)) and not owned(groups._mounts, name))[1])


def test_what_is_watched_is_a_share_of_what_is_held():
    held = bytearray(32 << 20)
    assert len(held) < watching.watched_memory(watching.tree(os.getpid()))
    assert watching.watched_memory([2**22 + 1]) == 0


def test_a_thread_that_ends_meanwhile_hides_no_child_of_the_others(monkeypatch):
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["gone", *listed(folder)])
    with subprocess.Popen(["sleep", "300"]) as child:
        found = watching.tree(os.getpid())
        child.kill()
    assert child.pid in found


def test_a_group_serves_again_while_it_is_as_good_as_new(groups):
    first = groups.take("1", LIMITS)
    assert groups.add_idle(first)
    others = LIMITS | {"processes": LIMITS["processes"] + 1}
    second = groups.take("2", others)
    assert second is not first
    assert groups.take("3", LIMITS) is first
    with subprocess.Popen(["sleep", "60"]) as process:
        first.add(process.pid)
        reused = groups.add_idle(first)
        first.kill()
    assert not reused  # somebody was here
    assert not groups.add_idle(first)  # in version 1 nobody can fork here any more
    assert groups.add_idle(second)
    assert groups.take("4", LIMITS) is not second
    soon(lambda: first.remove(1.0))


def test_a_group_whose_memory_is_not_free_yet_serves_nobody(groups):
    group = groups.take("held", LIMITS)
    program = (
        "import os\n"
        "os.write(1, b'\\n')\n"  # what the interpreter itself has read is not counted here
        "os.read(0, 1)\n"
        "file = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)\n"
        "os.write(file, bytes(8 << 20))\n"
        "os.write(1, b'%d\\n' % file)\n"
        "os.read(0, 1)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        group.add(process.pid)
        process.stdin.write(b"x")
        process.stdin.flush()
        file = os.open(f"/proc/{process.pid}/fd/{int(process.stdout.readline())}", os.O_RDONLY)
        process.communicate(timeout=60)
    assert not groups.add_idle(group)
    os.close(file)
    soon(lambda: groups.add_idle(group))  # the kernel lets go of some of it when it has time
