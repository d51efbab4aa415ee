"""Hostile programs get nowhere: each does what it does without a sandbox, and none of it within one.

Every program (`hostile/`) is first run bare, where it must get its way; then in each backend, once in a place of its
own and once in a session; then come the scenes that take more than one program. As root and as an ordinary user.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hostile.becoming import USER
from hostile.families import PROGRAMS
from hostile.scenes import SCENES

pytestmark = pytest.mark.prove
ANSWER_SECONDS = 400.0
OPENING_SECONDS = 400.0
AS_ROOT, AS_USER, DOCKER = "local as root", "local as user", "docker"
WAYS = [pytest.param(AS_ROOT), pytest.param(AS_USER), pytest.param(DOCKER, marks=pytest.mark.docker)]


SAME_WALLS = ("files", "network", "syscalls")
"""What a container itself guards: a session's walls are a single run's, and a container for each takes its time."""
IN_SESSIONS = [
    pytest.param(*way.values, name, marks=way.marks)
    for way in WAYS
    for name, program in PROGRAMS.items()
    if way.values != (DOCKER,) or program.guard not in SAME_WALLS
]


class Driver:
    """A process that is told names and tells complaints. One that does not answer is replaced."""

    def __init__(self, *words: str, greets: bool, **environment: str) -> None:
        self.words, self.greets, self.environment, self.process = words, greets, environment, None
        self.home = tempfile.mkdtemp(prefix="hostile-home-", dir="/tmp")
        self.greeting: dict[str, object] = {}
        if "HOME" not in environment and words[-1] == str(USER):
            os.chown(self.home, USER, USER)
            self.environment["HOME"] = self.home

    def ask(self, question: str) -> object:
        """The answer to a line."""
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(question.encode() + b"\n")
        self.process.stdin.flush()
        return self._read(ANSWER_SECONDS)

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent,
            env={**os.environ, **self.environment},
        )
        if self.greets:
            self.greeting = self._read(OPENING_SECONDS)  # type: ignore[assignment]
            if "unavailable" in self.greeting:
                self.close()

    def _read(self, seconds: float) -> object:
        assert self.process is not None
        assert self.process.stdout is not None
        ready = select.select([self.process.stdout], [], [], seconds)[0]
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.close()
            pytest.fail(f"{' '.join(self.words)} {'has died' if ready else f'gave no answer in {seconds:g} s'}")
        return json.loads(line)

    def close(self) -> None:
        """Let it end, or kill it."""
        process, self.process = self.process, None
        if process is not None:
            with process:
                process.stdin.close()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()

    def end(self) -> None:
        """Close it, and clear up behind it."""
        self.close()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(scope="module")
def bare():
    """Where programs run without a sandbox."""
    if os.geteuid() != 0:
        pytest.skip("to show what programs do without a sandbox takes root")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("to show the interpreter to another user takes CAP_SYS_ADMIN")
    driver = Driver("hostile.bare", greets=False)
    yield driver
    driver.end()


@pytest.fixture(scope="module")
def judge(request):
    """Ask the driver of a backend, skip where there is none."""
    root = os.geteuid() == 0
    if request.param == AS_ROOT and not root:
        pytest.skip("we are not root")
    if request.param == DOCKER and "DOCKER_HOST" not in os.environ:
        pytest.skip("DOCKER_HOST names no engine; `make test-docker` starts one")
    user = str(USER) if request.param == AS_USER and root else "same"
    driver = Driver("hostile.driver", request.param.split()[0], user, greets=True)

    def ask(way, name):
        complaints = None if "unavailable" in driver.greeting else driver.ask(json.dumps([way, name]))
        if "unavailable" in driver.greeting:
            pytest.skip(str(driver.greeting["unavailable"]))
        if complaints is None:
            pytest.skip("what would stop it is absent, and the capabilities say so")
        assert complaints == [], "\n".join(complaints)

    yield ask
    driver.end()


def lacks(control):
    """Why a program cannot get its way on this machine, sandbox or not."""
    if control == "core_pattern" and Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        return "this machine gives core dumps to a program"
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    if control == "io_uring" and disabled.exists() and disabled.read_text().strip() != "0":
        return "io_uring is switched off on this machine"
    if control == "old_calls" and os.uname().machine != "x86_64":
        return "this machine has no calls of older ones"
    return ""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_its_way_where_there_is_no_sandbox(bare, name):
    if reason := lacks(PROGRAMS[name].control):
        pytest.skip(reason)
    assert bare.ask(name) == ""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("judge", WAYS, indirect=True)
def test_a_program_gets_nowhere(judge, name):
    judge("once", name)


@pytest.mark.parametrize(("judge", "name"), IN_SESSIONS, indirect=["judge"])
def test_a_program_gets_nowhere_in_a_session(judge, name):
    judge("session", name)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("judge", WAYS, indirect=True)
def test_a_scene_ends_well(judge, name):
    judge("scene", name)
