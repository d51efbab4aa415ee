"""What the local sandbox tells: a value is cut as output is, only cuts are cuts, errors begin in the program."""

from collections.abc import Iterator

import pytest

from palaestra.envs.sandboxes import Limits, Result, Session, open_sandbox
from palaestra.envs.sandboxes.local import LocalSandbox
from palaestra.errors import SandboxUnavailable

SECONDS = 60.0


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    try:
        opened = LocalSandbox(Limits(seconds=SECONDS, output_bytes=2**22), preload="bare")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def session(sandbox: LocalSandbox) -> Iterator[Session]:
    with sandbox.start(limits=Limits(seconds=SECONDS)) as opened:
        yield opened


def test_a_value_is_cut_as_output_is_and_says_so(session: Session) -> None:
    result = session.run("'a' * 10**7 + 'z' * 10**7", show_last=True)
    value = result.value or ""
    assert result.ok and result.truncated and len(value) < 8192 + 100
    assert value.startswith("'aaa") and value.endswith("zzz'")
    assert "\n[... 19991810 of 20000002 bytes left out ...]\n" in value
    whole = session.run("'a' * 8190", show_last=True)
    assert (whole.value, whole.truncated) == (repr("a" * 8190), False)


def test_a_value_is_bounded_however_much_output_is_kept_and_the_session_goes_on(sandbox: LocalSandbox) -> None:
    with sandbox.start() as session:
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
