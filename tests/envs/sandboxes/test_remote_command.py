"""`palaestra serve sandbox`, as it is started: it serves, and when it is stopped or killed nothing of it is left."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from settling import below, known, live, soon

from palaestra.envs.sandboxes import open_sandbox
from palaestra.envs.sandboxes.remote.connection import TOKEN_ENV
from palaestra.errors import Broken, UsageError

pytestmark = pytest.mark.prove
TOKEN = "a-token-of-many-letters"
CLIENT = """
import sys
from palaestra.envs.sandboxes import open_sandbox
with open_sandbox("remote", url=sys.argv[1]) as sandbox:
    session = sandbox.start()
    session.run("import ctypes, time")
    print("began", flush=True)
    session.run("ctypes.CDLL(None).prctl(15, b'under way', 0, 0, 0); time.sleep(500)", timeout=500)
"""


def name(process):
    """What it calls itself."""
    try:
        return Path(f"/proc/{process[0]}/comm").read_bytes().strip()
    except OSError:
        return b""


@pytest.fixture
def server(monkeypatch):
    """The command, and the address that it prints."""
    monkeypatch.setenv(TOKEN_ENV, TOKEN)
    words = [sys.executable, "-m", "palaestra", "serve", "sandbox", "--port", "0", "--require", "files", "network"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with process:
        lines = []
        while not any(line.startswith("http") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        yield process, next(line.strip() for line in lines if line.startswith("http"))
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        assert TOKEN not in "".join(lines) + process.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_stopped_leaves_no_process(server, number):
    process, url = server
    with open_sandbox("remote", url=url, patience=0.3) as sandbox:
        session = sandbox.start(files={"a": b"x"})
        session.run("import os\nif not os.fork():\n import time; time.sleep(1000)")
        family = known(below(process.pid))
        assert len(family) >= 4
        process.send_signal(number)
        process.wait(60)
        soon(lambda: not live(family))
        with pytest.raises(Broken):
            session.run("print(1)")


def test_the_run_of_a_client_that_is_killed_is_ended(server):
    process, url = server
    with open_sandbox("remote", url=url) as sandbox, sandbox.start() as session:
        session.run("print(1)")
        sandbox.run_once("import numpy")
    before = known(below(process.pid))
    client = subprocess.Popen([sys.executable, "-c", CLIENT, url], stdout=subprocess.PIPE)
    with client:
        assert client.stdout.readline() == b"began\n"
        began = known(below(process.pid)) - before
        assert len(began) >= 2  # the first process of its session, and the one that runs its programs
        soon(lambda: b"under way" in map(name, began))
        client.kill()
    soon(lambda: not live(began))


def test_a_wrong_token_is_refused(server, monkeypatch):
    monkeypatch.setenv(TOKEN_ENV, TOKEN[::-1])
    with pytest.raises(UsageError, match="refused"):
        open_sandbox("remote", url=server[1])
