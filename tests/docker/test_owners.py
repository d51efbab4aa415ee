"""Nobody's containers: a killed trainer leaves none, what cannot die by itself is reaped, others' are left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from palaestra.envs.sandboxes import Sandbox
from palaestra.envs.sandboxes.docker import images, owners

Open = Callable[..., Sandbox]
TRAINER = """
import os, sys, time
from palaestra.envs.sandboxes.docker import DockerSandbox
sandbox = DockerSandbox(None, "runner", preload="bare", warm=1)
session = sandbox.start()
sandbox.run_once("pass")
print(session.run("import os; print(os.getuid())").stdout.strip(), flush=True)
session.run("import time; time.sleep(1000)", timeout=1000)
"""


def of_process(engine: Any, process: int) -> list[str]:
    found = engine.containers(all=True, filters={"label": owners.LABEL})
    return [item["Id"] for item in found if f"-{process}-" in item["Labels"][owners.LABEL]]


@pytest.mark.docker
def test_a_killed_trainer_leaves_no_container(engine: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        try:
            assert trainer.stdout.readline().strip().isdigit()
            assert len(of_process(engine, trainer.pid)) >= 2
        finally:
            trainer.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while left := of_process(engine, trainer.pid):
        assert time.monotonic() < deadline, f"{len(left)} containers outlived their owner"
        time.sleep(0.05)


@pytest.mark.docker
def test_the_reaper_takes_what_a_dead_owner_left_and_nothing_else(engine: Any) -> None:
    gone = owners.owner_label().rpartition("-")[0] + "-1"  # this pid, started at another time
    elsewhere = "another-boot palaestra-4026531836-1-1"
    made = {
        owner: engine.create_container(images.tag("runner"), ["true"], labels={owners.LABEL: owner})["Id"]
        for owner in (gone, owners.owner_label(), elsewhere)
    }
    try:
        assert owners.reap(engine) == 1
        left = {item["Id"] for item in engine.containers(all=True, filters={"label": owners.LABEL})}
        assert made[gone] not in left
        assert {made[owners.owner_label()], made[elsewhere]} <= left
    finally:
        for identity in made.values():
            owners.remove(engine, identity)


@pytest.mark.docker
def test_a_forked_child_leaves_its_parents_containers_alone(opened: Open) -> None:
    sandbox = opened()
    session = sandbox.start()
    session.run("x = 5")
    child = os.fork()
    if child == 0:
        session.close()
        sandbox.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert session.run("x", show_last=True).value == "5"
    assert sandbox.run_once("print(1)").ok
    session.close()


@pytest.mark.docker
def test_closing_leaves_nothing(opened: Open, engine: Any) -> None:
    before = set(of_process(engine, os.getpid()))
    sandbox = opened(warm=1)
    sandbox.start()
    sandbox.run_once("pass")
    assert set(of_process(engine, os.getpid())) > before
    sandbox.close()
    assert set(of_process(engine, os.getpid())) <= before


def test_a_process_is_known_by_more_than_its_number() -> None:
    label = owners.owner_label()
    namespace, process, started = label.rsplit("-", 2)
    assert not owners.is_gone(label)
    assert owners.is_gone(f"{namespace}-{process}-{int(started) + 1}"), "the pid was given to another process"
    assert owners.is_gone(f"{namespace}-{2**22 + 1}-5"), "no such process"
    assert not owners.is_gone(f"elsewhere palaestra-1-{process}-5"), "another machine's: nobody here can tell"
    assert not owners.is_gone("")
    assert not owners.is_gone("nonsense")
