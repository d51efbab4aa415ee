"""Output: more than anybody wants to keep, and kinds that break who reads them."""

from palaestra.envs.sandboxes import Result

from .program import hostile

KEPT = 8192
MIDDLE = 200
PIPE = 2**16
"""Bytes that a pipe holds: a flood has filled one, however busy the machine is."""


def bounded(result: Result) -> str:
    """Head and tail were kept, and all of it counted."""
    for text, count in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
        if len(text) > KEPT + MIDDLE:
            return f"{len(text)} characters were kept"
        if len(text) > KEPT // 2 and count < PIPE:
            return f"{count} bytes were counted"
    if not result.truncated:
        return "it does not say that output is missing"
    return ""


@hostile("", control="outlives", seconds=3.0, expected={"timed_out": True}, check=bounded)
def flood(given):
    """Output without end on both streams, in large pieces and in small ones, from several processes."""
    import os

    children = [os.fork() for _ in range(2)]
    while True:
        os.write(1 + all(children), b"word\n" * 20 if all(children) else b"x" * 65536)


@hostile("", control="user", expected={"exit_code": 0, "limit_hit": "output", "timed_out": False}, check=bounded)
def one_long_line(given):
    """A hundred million letters, and no line break."""
    import sys

    sys.stdout.write("x" * 10**8)
    sys.stdout.write(given["token"] * given["bare"])


def decoded(result: Result) -> str:
    """What is no text became the letter for that, and the rest is there."""
    for text in (result.stdout, result.stderr):
        if "\ufffd" not in text or "\x00" not in text or "good" not in text:
            return f"unexpected: {text!r}"
        text.encode()
    return ""


@hostile("", control="user", expected={"exit_code": 0}, check=decoded)
def no_text(given):
    """Bytes that are no text, halves of letters, NULs, what a terminal obeys."""
    import os

    for stream in (1, 2):
        os.write(
            stream, bytes(range(256)) + b"\xf0\x9f\x98" + b"\xed\xa0\x80" + b"\x1b]0;x\x07\x1b[2J" + b"\x00good\xe2"
        )
    print(given["token"] * given["bare"])


@hostile("", control="user", expected={"exit_code": 0})
def closed_output(given):
    """Output that nobody can write to any more, at exit."""
    import os
    import sys

    sys.stdout.write(given["token"] * given["bare"])
    sys.stdout.flush()
    os.close(1)
    os.close(2)
    os._exit(0)
