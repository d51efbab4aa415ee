"""When a container is used again, and when it is thrown away. A container is known by its user: each has its own."""

from collections.abc import Callable
from typing import Any

import pytest

from palaestra.envs.sandboxes import Sandbox
from palaestra.envs.sandboxes.docker import pool
from palaestra.envs.sandboxes.docker.owners import LABEL

pytestmark = pytest.mark.docker

WHO = "import os; print(os.getuid())"
Open = Callable[..., Sandbox]


def who(sandbox: Sandbox) -> str:
    done = sandbox.run_once(WHO)
    assert done.ok, done.stderr
    return done.stdout


def test_one_shot_runs_share_a_container_and_see_nothing_of_each_other(opened: Open) -> None:
    sandbox = opened()
    first = who(sandbox)
    leave = """
import os, threading, builtins
open("left", "w"), open("/tmp/left", "w")
os.makedirs("deep/er"), os.symlink("/", "deep/link")
builtins.len = None
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal, time
        for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
        for descriptor in (0, 1, 2): os.close(descriptor)
        time.sleep(60)
    os._exit(0)
os.wait()
"""
    assert sandbox.run_once(leave).exit_code == 0
    look = """
import os
names = [open(f"/proc/{pid}/comm").read().strip() for pid in os.listdir("/proc") if pid.isdigit()]
print(os.getuid(), os.listdir("."), sorted(os.listdir("/tmp")), len(names))
"""
    user, here, _, *rest = sandbox.run_once(look).stdout.split(" ", 3)
    assert f"{user}\n" == first, "an ordinary run cost a container"
    assert here == "[]"
    assert "left" not in str(rest)
    assert int(rest[-1].split()[-1]) <= 4, "a daemon outlived its run"


def test_folders_that_are_hard_to_remove_cost_nobody_a_run(opened: Open) -> None:
    sandbox = opened()
    for leave in (
        "import os; os.makedirs('deep/er'); os.chmod('deep', 0)",
        "import os\nfor _ in range(3000): os.mkdir('d' * 100); os.chdir('d' * 100)",
    ):
        sandbox.run_once(leave)
        done = sandbox.run_once("import os; print(os.listdir('.'))")
        assert done.stdout == "[]\n", done.stderr


def test_a_container_where_a_run_went_wrong_is_thrown_away_and_an_exception_is_nothing_wrong(opened: Open) -> None:
    sandbox = opened()
    last = who(sandbox)
    assert sandbox.run_once("1 / 0").exit_code == 1
    assert who(sandbox) == last
    for program, timeout in (
        ("import os; os.kill(os.getpid(), 9)", 5.0),
        ("while True: pass", 0.3),
        ("import ctypes; ctypes.string_at(1)", 5.0),
    ):
        assert not sandbox.run_once(program, timeout=timeout).ok
        before, last = last, who(sandbox)
        assert last != before


def test_a_container_serves_so_many_runs(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_RUNS", 2)
    sandbox = opened()
    users = [who(sandbox) for _ in range(4)]
    assert users[0] == users[1] != users[2] == users[3]


def test_a_session_has_a_container_to_itself(opened: Open) -> None:
    sandbox = opened()
    once = who(sandbox)
    with sandbox.start() as one, sandbox.start() as two:
        users = {session.run(WHO).stdout for session in (one, two)}
    assert len(users | {once}) == 3
    with sandbox.start() as three:
        assert three.run(WHO).stdout not in users
    assert who(sandbox) == once


def test_a_container_that_dies_while_it_waits_is_replaced(opened: Open, engine: Any) -> None:
    sandbox = opened()
    first = who(sandbox)
    for container in engine.containers(filters={"label": LABEL}):
        if engine.inspect_container(container["Id"])["Config"]["User"].startswith(first.strip()):
            engine.kill(container["Id"])
    assert who(sandbox) != first
