"""The local sandbox opened by an ordinary user, who may make no control groups: another process then watches memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(sys.platform != "linux", reason="the local sandbox is Linux's"),
]
HOG = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b"x" * (100 << 20))
        time.sleep(600)
for _ in range(4): os.wait()
"""
TRAINER = f"""
import json, os, sys
os.environ["HOME"] = "/"
sys.path.insert(0, {str(Path(__file__).parent)!r})
from hostile.becoming import USER, become, open_the_way
if os.geteuid() == 0:
    try:
        open_the_way()
    except OSError as error:
        print(json.dumps({{"unavailable": str(error), "namespaces": False}}))
        sys.exit()
    become(USER + 1)  # a hostile program of another test may be killing all that is USER's
os.chdir("/")
from dataclasses import asdict
from palaestra.envs.sandboxes import Limits, open_sandbox
from palaestra.errors import SandboxUnavailable
try:
    sandbox = open_sandbox(limits=Limits(memory_bytes=256 << 20))
except SandboxUnavailable as error:
    from palaestra.envs.sandboxes.runner.syscalls import CLONE_NEWNS, CLONE_NEWUSER, unshare
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        print(json.dumps({{"unavailable": str(error), "namespaces": True}}))
    except OSError:
        print(json.dumps({{"unavailable": str(error), "namespaces": False}}))
    sys.exit()
with sandbox, sandbox.start(files={{"kept": b"1"}}) as session:
    session.run("x = 5")
    print(json.dumps({{
        "capabilities": asdict(sandbox.capabilities()),
        "user": os.getuid(),
        "once": asdict(sandbox.run_once({HOG!r}, timeout=300.0)),
        "session": asdict(session.run({HOG!r}, timeout=300.0)),
        "after": asdict(session.run("print('x' in globals(), open('kept').read())")),
        "limits": asdict(session.run("import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))")),
        "fork": asdict(session.fork().run("print(open('kept').read())")),
    }}))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What a trainer that is an ordinary user met."""
    done = subprocess.run([sys.executable, "-c", TRAINER], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if "unavailable" in found:
        assert not found["namespaces"], f"this user may make namespaces: {found['unavailable']}"
        pytest.skip(found["unavailable"])
    if found["capabilities"]["memory"] != "watched":
        pytest.skip("this user may make control groups")
    return found


def test_memory_of_a_whole_tree_is_watched_and_its_run_killed(told: dict[str, Any]) -> None:
    assert told["user"] != 0 and not told["capabilities"]["own_user"]
    for way in ("once", "session"):
        result = told[way]
        assert result["oom"] and result["limit_hit"] == "memory" and result["signal"] == 9, result
        assert result["duration_s"] < 200 and not result["timed_out"], result


def test_the_session_goes_on_with_its_files(told: dict[str, Any]) -> None:
    assert told["session"]["state_lost"]
    assert told["after"]["stdout"] == "False 1\n"
    assert told["fork"]["stdout"] == "1\n"


def test_a_program_cannot_limit_the_first_process_of_its_session(told: dict[str, Any]) -> None:
    assert told["limits"]["exit_code"] == 1 and "PermissionError" in told["limits"]["stderr"]
