"""Python in the local sandbox: whatever a program does to itself is told to the agent, in a session and without one."""

import asyncio
import os
import time
from types import SimpleNamespace

import pytest

from palaestra import ToolError
from palaestra.envs import Task
from palaestra.envs.sandboxes import Limits
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import SandboxedToolkit
from palaestra.envs.tools.shell import Shell

QUICK = Limits(seconds=0.4, output_bytes=1000)


class Fresh(Python):
    stateful = False
    limits = Limits(memory_bytes=128 * 2**20)


class Kept(Python):
    limits = Fresh.limits


@pytest.fixture(autouse=True)
def time_limit(monkeypatch):
    """Programs are held to it as long as it `holds`: what ends by itself does so late on a busy machine."""
    found, admit = SimpleNamespace(holds=False), SandboxedToolkit.admit

    def admitted(kit):
        seconds = admit(kit)
        return seconds if found.holds else 60.0

    monkeypatch.setattr(SandboxedToolkit, "admit", admitted)
    return found


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
    """A toolkit's tool as a plain function of the texts of calls made at once, with refusals as they are told."""

    def start(kit):
        (found,) = kit.tools.values()
        tool = getattr(made(kit), found.attribute)

        async def all_of(texts):
            results = await asyncio.gather(*map(tool, texts), return_exceptions=True)
            said = [f"Error: {one}" if isinstance(one, ToolError) else one for one in results]
            return said[0] if len(said) == 1 else said

        return lambda *texts: asyncio.run(all_of(texts))

    return start


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
def test_f14_a_failing_program_is_an_observation_and_calls_at_once_get_their_own(started, kit):
    told = started(kit)(*(text for at, (code, _) in enumerate(FAILING) for text in (code, f"{at} * 7")))
    for at, ((code, said), failed, after) in enumerate(zip(FAILING, told[::2], told[1::2], strict=True)):
        assert failed.startswith("Error: "), code
        assert said in failed, (code, failed)
        assert after == str(at * 7)


ENDLESS = (
    "while True: pass",
    "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(60)",
    "while True: print('x' * 1000)",
    "import os, signal\nif not (child := os.fork()): os.kill(os.getpid(), signal.SIGSTOP)\nos.waitpid(child, 0)",
)


def test_f14_time_runs_out_as_an_observation(made, time_limit):
    quick = [type("Quick", (kit,), {"limits": QUICK}) for kit in (Fresh, Kept)]
    kits = [(made(kit), code) for kit in quick for code in ENDLESS]

    async def played(code=None):
        return await asyncio.gather(*(kit.python(code or own) for kit, own in kits), return_exceptions=True)

    begun, time_limit.holds = time.monotonic(), True
    late = asyncio.run(played())
    assert time.monotonic() - begun < 55  # The second of them takes a minute.
    time_limit.holds = False
    assert [str(one).split(";")[0].split("\n")[0] for one in late] == ["timed out after 0.4 s"] * 8
    assert asyncio.run(played("print(1)")) == ["1"] * 8


def test_runs_repeat_exactly_and_share_nothing_with_one_another_or_us(started, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    python = started(Fresh)
    assert len({python("print(set('abcdefgh'), hash('a'))") for _ in range(3)}) == 1
    python("import builtins; builtins.x = 1; y = 2; open('note', 'w').write('1')")
    assert "NameError" in python("print(x)")
    assert "FileNotFoundError" in python("open('note')")
    assert "hunter2" not in python("import os; print(os.environ)")
    assert str(os.getpid()) not in python("import os; print(os.getppid())")


def test_a_shell_has_the_sessions_files(started):
    shell = started(Shell)
    assert shell("echo 42 > answer; cat answer") == "42"
    assert shell("cat answer") == "42"
    assert shell("cat nothing").startswith("Error: ")
