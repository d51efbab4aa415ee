"""Python in the local sandbox: whatever a program does to itself is told to the agent, in a session and without one."""

import asyncio
import copy
import os
import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest

import palaestra
from palaestra import ToolError
from palaestra.envs import Task
from palaestra.envs.sandboxes import Limits, opening, supervised
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import SandboxedToolkit
from palaestra.envs.tools.shell import Shell
from palaestra.episode import Start

QUICK = Limits(seconds=0.4, output_bytes=1000)


class Fresh(Python):
    stateful = False
    limits = Limits(memory_bytes=128 * 2**20)


class Kept(Python):
    limits = Fresh.limits


class QuickFresh(Fresh):
    limits = QUICK


class QuickKept(Kept):
    limits = QUICK


@pytest.fixture(autouse=True)
def time_limit(monkeypatch):
    """Programs are held to it as long as it `holds`: what ends by itself does so late on a busy machine."""
    found, admit = SimpleNamespace(holds=False), SandboxedToolkit._admit

    def admitted(kit):
        seconds = admit(kit)
        return seconds if found.holds else 60.0

    monkeypatch.setattr(SandboxedToolkit, "_admit", admitted)
    return found


@pytest.fixture
def forbearing(tmp_path, monkeypatch):
    """A sandbox that gives a program a minute, instead of a moment, to end where it was told to."""
    runner = tmp_path / "runner"
    shutil.copytree(supervised._RUNNER, runner)
    text = (runner / "runs.py").read_text()
    assert text.count("GRACE_SECONDS = 0.3\n") == 1
    (runner / "runs.py").write_text(text.replace("GRACE_SECONDS = 0.3\n", "GRACE_SECONDS = 60.0\n"))
    monkeypatch.setattr(supervised, "_RUNNER", runner)
    monkeypatch.setattr(opening, "_shared", {})
    yield
    for sandbox in opening._shared.values():
        sandbox.close()


@pytest.fixture
def made():
    """Makes toolkits that stand at the start of an episode."""
    kits = []

    def make(kit):
        kits.append(kit())
        kits[-1].start(Task(prompt="?", answer="!"), None)
        return kits[-1]

    yield make
    for kit in kits:
        kit.close()


@pytest.fixture
def started(made):
    """A toolkit's tool as a plain function of the texts of calls made at once."""

    def start(kit):
        (found,) = kit.tools.values()
        tool = getattr(made(kit), found.attribute)
        return lambda *texts: asyncio.run(_all(tool, texts))

    return start


async def _all(tool, texts):
    """The results of calls made at once, refusals as they are told."""
    found = await asyncio.gather(*map(tool, texts), return_exceptions=True)
    said = [f"Error: {one}" if isinstance(one, ToolError) else one for one in found]
    return said[0] if len(said) == 1 else said


FAILING = [
    ("1/0", "ZeroDivisionError"),
    ("def f(): return f()\nf()", "RecursionError"),
    ("(", "SyntaxError"),
    ("\x00", "SyntaxError"),
    ("import sys; sys.exit('bye')", "bye"),
    ("import os; os._exit(3)", "ended with status 3"),
    ("import os; os.abort()", "killed by SIG"),
    ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ("x = []\nwhile True: x.append(bytearray(10**7))", "emory"),
    ("input()", "EOFError"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("class E(Exception):\n def __str__(self): raise ValueError\nraise E", "E"),
]


@pytest.mark.parametrize("kit", [Fresh, Kept])
def test_a_failing_program_is_an_observation(started, kit):
    told = started(kit)(*(text for code, _ in FAILING for text in (code, "6 * 7")))
    for (code, said), failed, after in zip(FAILING, told[::2], told[1::2], strict=True):
        assert failed.startswith("Error: "), code
        assert said in failed, (code, failed)
        assert after == "42"


ENDLESS = (
    "while True: pass",
    "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)",
    "while True: print('x' * 1000)",
    "import os, signal\nif not (child := os.fork()): os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(child, 0)",
)


def test_time_runs_out_as_an_observation(made, time_limit):
    kits = [(made(kit), code) for kit in (QuickFresh, QuickKept) for code in ENDLESS]

    async def play():
        return await asyncio.gather(*(kit.python(code) for kit, code in kits), return_exceptions=True)

    async def go_on():
        return await asyncio.gather(*(kit.python("print(1)") for kit, _ in kits))

    begun, time_limit.holds = time.monotonic(), True
    late = asyncio.run(play())
    assert time.monotonic() - begun < 55  # The second of them takes a minute.
    time_limit.holds = False
    after = asyncio.run(go_on())
    assert [str(one).split(";")[0].split("\n")[0] for one in late] == ["timed out after 0.4 s"] * 8
    assert after == ["1"] * 8


def test_variables_outlive_a_time_out_and_not_the_process(forbearing, started, time_limit):
    python = started(QuickKept)
    assert python("x = 41", "print('now')\nx + 1") == ["(no output)", "now\n42"]
    time_limit.holds = True
    told = python("while True: pass")
    time_limit.holds = False
    assert "variables kept" in told.splitlines()[0]
    assert python("x") == "41"
    assert "variables are gone, files stay" in python("open('note', 'w').write('here')\nimport os\nos._exit(0)")
    assert "NameError" in python("x")
    assert python("print(open('note').read())") == "here"


def test_output_keeps_head_and_tail_and_says_how_much_is_left_out(started):
    text = started(QuickFresh)("print('a' * 5000 + 'z' * 5000)")
    assert len(text) < 1200
    assert text.startswith("aaa")
    assert text.endswith("zzz")
    assert "10001 bytes left out" in text


def test_runs_repeat_exactly_and_share_nothing(started):
    python = started(Fresh)
    assert len({python("print(set('abcdefgh'), hash('a'))") for _ in range(3)}) == 1
    python("import builtins; builtins.x = 1; y = 2; open('note', 'w').write('1')")
    assert "NameError" in python("print(x)")
    assert "FileNotFoundError" in python("open('note')")


def test_the_environment_holds_no_secret(started, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    assert "hunter2" not in started(Fresh)("import os; print(os.environ)")
    assert str(os.getpid()) not in started(Fresh)("import os; print(os.getppid())")


def test_calls_at_once_get_their_own_answers(started):
    assert started(Fresh)(*(f"print({number})" for number in range(40))) == [str(number) for number in range(40)]


def test_a_branch_goes_on_with_its_own_variables_and_files(made):
    kit = made(Kept)
    asyncio.run(kit.python("x = [1]; open('note', 'w').write('0')"))
    state = copy.deepcopy(kit.snapshot())
    asyncio.run(kit.python("x.append(2); open('note', 'w').write('1')"))
    branch = made(Kept)
    branch.restore(state)
    look = "print(x, open('note').read())"
    assert asyncio.run(branch.python(look)) == "[1] 0"
    assert asyncio.run(kit.python(look)) == "[1, 2] 1"
    kit.close()
    assert asyncio.run(branch.python(look)) == "[1] 0"


def test_a_shell_has_the_sessions_files(started):
    shell = started(Shell)
    assert shell("echo 42 > answer; cat answer") == "42"
    assert shell("cat answer") == "42"
    assert shell("cat nothing").startswith("Error: ")


def test_many_episodes_at_once_are_won():
    demonstrate = palaestra.demonstrator("palaestra/Arithmetic-v0")
    arena = palaestra.arena("palaestra/Arithmetic-v0", 32)
    said, won, rng = {slot: [] for slot in range(32)}, 0, np.random.default_rng(0)
    try:
        for slot in said:
            arena.begin(slot, Start(task=slot, seed=slot))
        while said:
            for event in arena.recv(1, 60.0):
                if event.ending is not None:
                    won += event.reward == 1.0
                    del said[event.slot]
                    continue
                said[event.slot] += event.messages
                text = demonstrate(said[event.slot], rng)
                said[event.slot].append({"role": "assistant", "content": text})
                arena.send({event.slot: text})
    finally:
        arena.close()
    assert won == 32
