"""A local session's limits: memory, CPU time, processes, files, and output, of which only what is cut says so."""

from pathlib import Path

import pytest
from settling import below, soon, supervisor_of

from palaestra.envs.sandboxes import Limits, Result, Session, open_sandbox, supervised
from palaestra.envs.sandboxes.local import LocalSandbox

MIB = 2**20
SECONDS = 60.0
LIMITS = Limits(seconds=SECONDS, memory_bytes=256 * MIB)


def test_a_value_is_cut_as_output_is_and_says_so(session: Session) -> None:
    result = session.run("'a' * 10**7 + 'z' * 10**7", show_last=True)
    value = result.value or ""
    assert result.ok and result.truncated and len(value) < 8192 + 100
    assert value.startswith("'aaa") and value.endswith("zzz'")
    assert "\n[... 19991810 of 20000002 bytes left out ...]\n" in value
    whole = session.run("'a' * 8190", show_last=True)
    assert (whole.value, whole.truncated) == (repr("a" * 8190), False)


def test_a_value_is_bounded_however_much_output_is_kept_and_the_session_goes_on() -> None:
    with LocalSandbox(Limits(seconds=SECONDS, output_bytes=4 * MIB), preload="bare") as wide, wide.start() as session:
        result = session.run("x = 1\n'a' * 10**7", show_last=True)
        assert result.ok and result.truncated and 2**16 <= len(result.value or "") < 2**16 + 100
        assert session.run("x", show_last=True).value == "1"


def test_what_a_program_prints_of_something_left_out_is_no_cut(session: Session) -> None:
    forged = r"'\n[... 5 of 9 bytes left out ...]\n'"
    result = session.run(f"print({forged})\n{forged}", show_last=True)
    assert "left out" in result.stdout and "left out" in (result.value or "")
    assert result.ok and not result.truncated


def test_output_that_was_cut_is_truncated_whatever_else_happened(session: Session) -> None:
    result = session.run("import os\nprint('x' * 10_000, flush=True)\nos.kill(os.getpid(), 24)")
    assert (result.limit_hit, result.truncated) == ("cpu_seconds", True)
    endless = Result(stdout=f"\n[... 1 of {'9' * 5000} bytes left out ...]\n", stdout_bytes=5030)
    assert not endless.truncated
    both = Result(stdout="a\n[... 8 of 10 bytes left out ...]\nz", stdout_bytes=10, limit_hit="seconds")
    assert both.truncated and not Result(stdout=both.stdout, stdout_bytes=35, limit_hit="seconds").truncated


@pytest.mark.parametrize("program", ["%timeit 1", "x = 1\n!ls", "print(", "'a\0'", "return 3"])
def test_a_syntax_error_tells_nothing_of_the_interpreter(sandbox: LocalSandbox, session: Session, program: str) -> None:
    plain, shown = (session.run(program, show_last=last).stderr for last in (False, True))
    assert plain.replace("<run 1>", "<run 2>") == shown
    alone = [sandbox.run_once(program, show_last=last).stderr for last in (False, True)]
    assert alone == [plain.replace("<run 1>", "main.py")] * 2
    assert "SyntaxError" in plain and "Traceback" not in plain


def test_limits_may_be_a_mapping_in_which_the_others_are_as_they_were() -> None:
    assert Limits.of({"seconds": 1}) == Limits(seconds=1)
    assert Limits(seconds=3, processes=7).narrowed({"seconds": 1}) == Limits(seconds=1, processes=7)


def test_a_backend_comes_with_its_options_and_limits_in_one_mapping(sandbox: LocalSandbox) -> None:
    place = {"backend": "local", "limits": {"seconds": SECONDS}, "require": ["files"]}
    with open_sandbox(place, require=["network"], preload="bare") as opened:
        assert opened.limits == Limits(seconds=SECONDS)
        assert opened.run_once("print(1)").stdout == "1\n"


def test_a_flood_is_cut_and_counted(session: Session) -> None:
    result = session.run("import sys\nfor i in range(200): sys.stdout.write('x' * 100_000)\nprint('end')")
    assert result.stdout_bytes == 20_000_004 and result.limit_hit == "output" and result.exit_code == 0
    assert result.stdout.startswith("xxx") and result.stdout.endswith("end\n") and len(result.stdout) < 8400
    assert result.truncated and f"of {20_000_004} bytes left out" in result.stdout


def test_bytes_that_are_no_text_are_replaced(sandbox: LocalSandbox) -> None:
    assert sandbox.run_once(r"import os; os.write(1, b'a\xff\x00b')").stdout == "a�\x00b"


def test_memory_beyond_the_limit_ends_the_run_and_not_the_session(session: Session) -> None:
    hog = "import os\nblocks = []\nwhile True: blocks.append(bytearray(b'x' * (8 << 20)))"
    result = session.run(hog)
    assert result.exit_code != 0
    assert (result.oom and result.limit_hit == "memory") or "MemoryError" in result.stderr
    assert session.run("1", show_last=True).value == "1"


def test_memory_of_children_counts_and_is_told(sandbox: LocalSandbox) -> None:
    if sandbox.capabilities().memory != "tree":
        pytest.skip("no control groups here")
    program = """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b"x" * (100 << 20))
        signal.pause()
os.wait()
print("over")
"""
    result = sandbox.run_once(program)  # each may have its share: they are too much together, so one of them dies
    assert result.oom and result.limit_hit == "memory"


def test_what_one_program_was_refused_is_not_told_of_the_next(sandbox: LocalSandbox) -> None:
    if sandbox.capabilities().memory != "tree":
        pytest.skip("no control groups here")
    bomb = "import os, time\ntry:\n    while os.fork(): pass\n    time.sleep(9)\nexcept BlockingIOError: pass"
    for _ in range(2):
        assert sandbox.run_once(bomb).limit_hit == "processes"
        assert sandbox.run_once("print(1)").limit_hit == ""


def test_cpu_time_has_a_limit_of_its_own(sandbox: LocalSandbox) -> None:
    with sandbox.start(limits=Limits(cpu_seconds=1.0, memory_bytes=256 * MIB)) as session:
        result = session.run("while True: pass", timeout=300.0)
    assert result.limit_hit == "cpu_seconds" and not result.timed_out and 0.5 < result.cpu_s < 3


RELAY = """
import os, time
def burn(seconds):
    while time.process_time() < seconds: pass
if not os.fork():
    for _ in range(10_000):
        os.setsid()
        burn(0.2)
        if os.fork(): os._exit(0)
"""
UNGROUPED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / "envs" / "sandboxes")!r})
from runner import cgroups, supervisor
sys.path.pop(0)
def find(): raise supervisor.Unavailable("no groups")
cgroups.find = find
supervisor.main()
"""


def test_children_that_relay_each_other_have_the_cpu_time_of_one_session_where_no_control_group_counts_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between runs and during one; where groups count is among the scenes of the proofs."""
    (tmp_path / "runner.py").write_text(UNGROUPED)
    monkeypatch.setattr(supervised, "_RUNNER", tmp_path / "runner.py")
    tight = Limits(cpu_seconds=1.0, seconds=SECONDS)
    with LocalSandbox(tight, preload="bare") as sandbox, sandbox.start() as session:
        quiet = below(supervisor_of(sandbox))
        during = session.run(f"{RELAY}time.sleep(1000)")
        assert (during.limit_hit, during.state_lost, during.timed_out) == ("cpu_seconds", True, False)
        assert session.run(RELAY).ok
        soon(lambda: below(supervisor_of(sandbox)) <= quiet)
        assert session.run("print(6 * 7)").stdout == "42\n"


def test_too_many_processes_are_told(sandbox: LocalSandbox) -> None:
    program = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(30)\n"
    result = sandbox.run_once(program)
    assert result.exit_code == 1 and "BlockingIOError" in result.stderr
    if sandbox.capabilities().memory == "tree":
        assert result.limit_hit == "processes"


def test_a_full_scratch_folder_is_told(session: Session) -> None:
    result = session.run("for i in range(40): open(f'f{i}', 'wb').write(b'x' * (4 << 20))")
    assert result.limit_hit == "scratch" and "No space left" in result.stderr


def test_large_programs_and_their_limit(sandbox: LocalSandbox) -> None:
    assert sandbox.run_once("#" * 900_000 + "\nprint(1)").stdout == "1\n"
    result = sandbox.run_once("#" * (MIB + 1))
    assert result.limit_hit == "code" and result.exit_code == 1 and not result.ok
