"""Sessions beside each other, branches of one session, and the folders that a sandbox shows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.envs.sandboxes.runner import root, syscalls

FOLDER = Path(__file__).resolve().parents[3] / "envs" / "sandboxes"
NOBODY = 54_322
HEAD = f"""
import os, signal, socket, sys, time
sys.path.insert(0, {str(FOLDER)!r})
from runner import cell
LIMITS = dict(cpu_seconds=20, memory_bytes=1 << 28, processes=8, file_bytes=1 << 20, open_files=64,
              scratch_bytes=1 << 20, scratch_files=64)
SETTINGS = dict(mode=sys.argv[1], owner=os.getpid(), memory_tree=False)
def session(slot, work, before=lambda: None):
    "Fork a confined session that does its work and sleeps; returns its pid and what it printed first."
    reader, writer = os.pipe()
    pid = cell.fork_session(SETTINGS)
    if pid == 0:
        try:
            os.dup2(writer, 1)
            os.close(cell.enter_session(LIMITS, slot, SETTINGS))
            before()
            cell.confine(LIMITS, slot, SETTINGS)
            os.write(1, repr(work()).encode())
            signal.pause()
        except BaseException as error: os.write(1, repr(error).encode())
        finally: os._exit(1)
    os.close(writer)
    return pid, os.read(reader, 4096).decode()
def error(attempt):
    try: attempt()
    except OSError as problem: return type(problem).__name__
    return "WON"
cell.enter_zygote(SETTINGS)
"""


def run(text: str, mode: str, ordinary: bool = False) -> str:
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ordinary else {}
    python = "/usr/bin/python3" if ordinary else sys.executable
    command = [python, "-I", "-S", "-c", HEAD + text, mode]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, **who)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(params=["root", "user"])
def mode(request):
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("only root can be root")
    return request.param


def test_sessions_meet_neither_by_socket_nor_by_file_nor_by_signal(mode):
    text = """
kept = []
def first():
    kept.append(socket.socket(socket.AF_UNIX))
    kept[0].bind(b"\\0name")
    kept[0].listen()
    open("mine", "w").close()
    return os.getuid()
def second():
    client = socket.socket(socket.AF_UNIX)
    seen = b"@name" in open("/proc/self/net/unix", "rb").read(), socket.socket(socket.AF_UNIX).bind(b"\\0name")
    met = error(lambda: client.connect(b"\\0name")), error(lambda: os.kill(2, 9))
    return *met, *seen, os.listdir(), os.listdir("/tmp")
print(session(1, first)[1])
print(session(2, second)[1])
"""
    first, second = run(text, mode).splitlines()
    assert second == "('ConnectionRefusedError', 'ProcessLookupError', False, None, [], [])"
    if mode == "root":
        assert int(first) >= 2**30


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose to be an ordinary user")
def test_an_ordinary_user_s_sessions_have_their_processes_counted_apart():
    text = """
def bomb():
    count = 1
    try:
        while os.fork(): count += 1
        signal.pause()
    except BlockingIOError: return count
print([session(slot, bomb)[1] for slot in range(4)])
"""
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("no interpreter that an ordinary user can run")
    assert run(text, "user", ordinary=True).strip() == "['8', '8', '8', '8']"


def test_a_branch_keeps_the_state_and_loses_the_old_folder(mode):
    text = """
def make_folders():
    owner = os.stat("/work/0")
    for name in ("1", "1/2"):
        os.mkdir("/work/" + name, 0o755)
        os.chown("/work/" + name, owner.st_uid, owner.st_gid)
def branch(folder, then):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try: cell.enter_branch(folder, SETTINGS); os.write(writer, repr(then()).encode())
        except BaseException as problem: os.write(writer, repr(problem).encode())
        finally: os._exit(0)
    os.wait()
    return os.read(reader, 999).decode()
def look():
    import decimal, json
    open("here", "w").write("branch"); open("/tmp/shared", "w").close(); open("/dev/null", "w").close()
    seen = state, os.getcwd(), sorted(os.listdir())
    kept = *seen, error(lambda: open("/work/0/file")), error(lambda: os.listdir("/work"))
    return kept, branch("1/2", lambda: (state, os.getcwd(), error(lambda: open("/work/1/here"))))
def work():
    global state
    state = 42
    open("file", "w").write("old")
    return branch("1", look), open("file").read(), os.listdir("/tmp")
print(session(1, work, make_folders)[1])
"""
    found = run(text, mode).replace("\\", "")
    assert "(42, '/work/1', ['2', 'here'], 'PermissionError', 'PermissionError')" in found
    assert "(42, '/work/1/2', 'PermissionError')" in found and "'old', ['shared']" in found
    assert "WON" not in found


def test_the_outer_process_ends_as_the_zygote_ends(mode):
    for ending, code in (("os._exit(7)", 7), ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV)):
        found = subprocess.run([sys.executable, "-I", "-S", "-c", HEAD + ending, mode], timeout=300)
        assert found.returncode == code


def test_an_outer_process_that_is_ended_just_as_it_forks_takes_the_zygote_with_it(mode):
    ended = """fork = os.fork
def fork_and_end():
    pid = fork()
    os.kill(os.getpid(), signal.SIGTERM) if pid else time.sleep(0.2)
    return pid
os.fork = fork_and_end
cell.enter_zygote("""
    command = [sys.executable, "-I", "-S", "-c", HEAD.replace("cell.enter_zygote(", ended) + "print('left')", mode]
    found = subprocess.run(command, capture_output=True, timeout=300)
    assert (found.returncode, found.stdout) == (-signal.SIGKILL, b"")


def test_a_folder_that_is_too_much_or_unreadable_is_an_error_that_says_what_to_do(monkeypatch):
    with pytest.raises(syscalls.Unavailable, match="more than an interpreter"):
        root.plan([str(Path.home().parent)])
    monkeypatch.setattr(root.os, "access", lambda path, wanted: False)
    with pytest.raises(syscalls.Unavailable, match=r"may not read .*chmod -R go\+rX"):
        root.check_readable([])


def test_folders_show_where_they_are_unless_the_sandbox_needs_that_place(tmp_path):
    for name in ("lone", "lone/below", "other"):
        (tmp_path / name).mkdir()
    outer, below, other = (str(tmp_path / name) for name in ("lone", "lone/below", "other"))
    places = root.plan([below, outer, other, "/usr/lib", "/nowhere", outer])
    moved = root.inside(below, places)  # the temporary folder is one that the sandbox needs, unless it was told another
    assert moved == (below if not below.startswith("/tmp/") else "/opt/palaestra/0/below")
    assert [source for source, _ in places] == [outer, other]
    assert root.inside("/usr/lib/x", places) == "/usr/lib/x"
