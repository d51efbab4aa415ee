"""What an agent is told of a run: its output, or first, in a few words, how it ended."""

import pytest

from palaestra import ToolError
from palaestra.envs.sandboxes import Limits, Result
from palaestra.envs.tools.replies import reply


def told(result, variables=False, seconds=5.0):
    with pytest.raises(ToolError) as caught:
        reply(result, Limits(), seconds, variables=variables)
    return str(caught.value)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(stdout="45\n"), "45"),
        (Result(value="45"), "45"),
        (Result(stdout="a\nb\n", value="{'c': 1}", stderr="careful\n"), "a\nb\n{'c': 1}\ncareful"),
        (Result(stdout="  indented\n"), "  indented"),
        (Result(), "(no output)"),
        (Result(stdout="\n"), "(no output)"),
    ],
)
def test_a_run_that_ended_well_is_its_output(result, text):
    assert reply(result, Limits(), 5.0, variables=True) == text


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result(exit_code=1, stdout="1\n", stderr="ZeroDivisionError: x\n"), "1\nZeroDivisionError: x"),
        (Result(exit_code=3), "ended with status 3"),
        (Result(exit_code=1), "ended with status 1"),
        (Result(exit_code=3, stdout="bye\n"), "ended with status 3\nbye"),
        (Result(exit_code=None, signal=11, state_lost=True), "killed by SIGSEGV"),
        (Result(exit_code=None, signal=40), "killed by signal 40"),
        (Result(exit_code=None, signal=9, oom=True, limit_hit="memory"), "it took more than 512 MiB of memory"),
        (Result(exit_code=None, signal=9, oom=True), "it took more than 512 MiB of memory"),
        (Result(exit_code=1, limit_hit="processes", stderr="BlockingIOError\n"),
         "at most 32 processes and threads may run at once\nBlockingIOError"),
        (Result(exit_code=None, signal=24, limit_hit="cpu_seconds"), "it took more than 60 s of CPU time"),
        (Result(exit_code=1, limit_hit="scratch", stderr="OSError\n"),
         "files may take 64 MiB and number 4096\nOSError"),
        (Result(exit_code=None, timed_out=True, signal=9, limit_hit="seconds", stdout="so far\n"),
         "timed out after 5 s\nso far"),
    ],
)  # fmt: skip
def test_how_a_run_ended_comes_before_its_output(result, text):
    assert told(result) == text


def test_in_a_session_it_is_said_what_is_left():
    late = Result(exit_code=1, timed_out=True, limit_hit="seconds")
    assert told(late, variables=True, seconds=0.25) == "timed out after 0.25 s; variables kept"
    dead = Result(exit_code=None, timed_out=True, signal=9, limit_hit="seconds", state_lost=True)
    assert told(dead, variables=True) == (
        "timed out after 5 s; the session was restarted: variables are gone, files stay"
    )
    left = Result(exit_code=0, state_lost=True)  # os._exit(0)
    assert told(left, variables=True) == "the session was restarted: variables are gone, files stay"
