"""SIGKILL of the trainer, a supervisor, a zygote, a session: nothing is left and the next run answers.

Every kill comes at a random moment, while sessions start, run, fork, wait and end. What may be left behind is
asked of the kernel: processes, mounts, cgroups, temporary files.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hostile.judging import descendants
from hostile.scene import alive, born, children, groups, mounts

from palaestra.envs.sandboxes import Sandbox, open_sandbox
from palaestra.errors import Broken

pytestmark = [pytest.mark.prove, pytest.mark.skipif(sys.platform != "linux", reason="the local sandbox is Linux's")]
KILLS = 20
DEADLINE = 60.0
"""What would stay without being killed stays for longer."""
BUSY = """
import random, threading, time
from palaestra.envs.sandboxes import open_sandbox
from palaestra.errors import Broken
PROGRAMS = ("print(1)", "import numpy; print(numpy.ones(3))", "import time; time.sleep(5)",
            "import os\\nfor _ in range(3):\\n    if not os.fork(): os.setsid(); import time; time.sleep(600)",
            "open('left', 'w').write('x' * 100000)", "while True: pass")
sandbox = open_sandbox()
sandbox.start().close()  # The next sessions begin at once.
def work(number):
    rng = random.Random(number)
    while True:
        try:
            with sandbox.start(files={"given": b"data"}) as session:
                for _ in range(3):
                    session.run(rng.choice(PROGRAMS), timeout=0.3)
                session.fork().close()
            sandbox.run_once(rng.choice(PROGRAMS), timeout=0.3)
        except Broken:
            time.sleep(0.01)
for number in range(4):
    threading.Thread(target=work, args=(number,), daemon=True).start()
print("busy", flush=True)
time.sleep(600)
"""


def traces(temporary: Path) -> dict[str, object]:
    """What a sandbox might leave on the host: mounts, and files in the folder for temporary ones."""
    return {"mounts": mounts(), "files": sorted(path.name for path in temporary.iterdir())}


def settles(question: object, expected: object, seconds: float = DEADLINE) -> object:
    """What `question()` says once it is as expected, or at the end of its time."""
    end = time.monotonic() + seconds
    while (found := question()) != expected and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.02)
    return found


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the temporary files of this test and its trainers: no other process writes here."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read the variable anew
    return folder


def test_a_killed_trainer_leaves_no_process_mount_cgroup_or_file(tmp_path: Path, temporary: Path) -> None:
    rng = random.Random(1)
    before = traces(temporary)
    for _ in range(KILLS):
        trainer = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "busy\n"
        time.sleep(rng.uniform(0.0, 1.0))
        family = {number: born(number) for number in descendants(trainer.pid)}
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
        assert settles(lambda family=family: alive(family), set()) == set()
        assert settles(lambda family=family: groups(family), set()) == set()
        assert traces(temporary) == before


@pytest.mark.parametrize("victim", ["supervisor", "zygote", "session"])
def test_a_killed_part_is_replaced_and_nothing_of_it_is_left(victim: str, temporary: Path) -> None:
    rng = random.Random(victim)
    before = traces(temporary)
    others = descendants(os.getpid())  # of sandboxes that this process keeps open all its life
    owners: dict[int, str] = {}
    broken = too_late = 0
    with open_sandbox() as sandbox:
        for _ in range(KILLS):
            sandbox.run_once("print(1)")
            session = sandbox.start()
            session.run("x = 1")
            supervisor = the_supervisor(others)
            owners[supervisor] = born(supervisor)
            number = part(supervisor, victim)
            family = {one: born(one) for one in descendants(number) | {number}}
            assert number in alive(family)
            time.sleep(rng.uniform(0.0, 0.05))
            os.kill(number, signal.SIGKILL)
            if rng.random() < 0.5:  # else the run may be over before the kernel has ended what the victim kept
                assert settles(lambda number=number: born(number), "") == ""
                too_late += 1
            try:
                result = session.run("print(x)", timeout=2.0)
                assert result.stdout == "1\n" or result.state_lost or not result.ok
            except Broken:
                broken += 1
            session.close()
            assert settles(lambda family=family: alive(family), set()) == set()
            assert recovered(sandbox), "the next run answers"
    assert settles(lambda: groups(owners), set()) == set()
    assert traces(temporary) == before
    if victim != "session":
        assert broken >= too_late > 0, "a session whose keeper is gone is Broken, and never an answer"


def recovered(sandbox: Sandbox) -> bool:
    """Whether a new run answers. One that was on its way when the kill came may break."""
    for _ in range(3):
        try:
            return sandbox.run_once("print(6 * 7)").stdout == "42\n"
        except Broken:
            continue
    return False


def the_supervisor(others: set[int]) -> int:
    """The one supervisor below us that is not one of the `others`."""
    (supervisor,) = (one for one in children(os.getpid()) - others if born(one) and b"runner" in words(one))
    return supervisor


def words(number: int) -> bytes:
    """What a process was started with; nothing for one that is gone."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""


def part(supervisor: int, victim: str) -> int:
    """The process to kill, by its place: supervisor, zygote and its keeper, init of a session, console."""
    if victim == "supervisor":
        return supervisor
    (console,) = (number for number in descendants(supervisor) if depth(number, supervisor) == 4)
    return console if victim == "session" else parent(parent(console))


def parent(number: int) -> int:
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def depth(number: int, top: int) -> int:
    """How many steps below `top`."""
    steps = 0
    while number not in (0, top):
        number, steps = parent(number), steps + 1
    return steps
