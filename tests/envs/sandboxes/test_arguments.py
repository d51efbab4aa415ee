"""Wrong options and arguments are refused before anything is sent, in words that say what was expected."""

from collections.abc import Callable
from typing import Any

import pytest

from palaestra.envs.sandboxes import Limits, Sandbox, Session, open_sandbox
from palaestra.envs.sandboxes.remote.fusion import request_of
from palaestra.envs.sandboxes.sandbox import Execution
from palaestra.errors import UsageError


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("remote", {}, "the remote sandbox needs 'url'"),
        ("local", {"limit": 1}, "no option 'limit'; did you mean 'limits'.* known: limits, preload"),
        ("docker", {"max_container": 1}, "did you mean 'max_containers'"),
        ("local", {"limits": 5}, r"limits is 5; expected Limits, as in Limits\(seconds=5\), or a mapping"),
        ("local", {"limits": {"memory": 5}}, "limits has no 'memory'; did you mean 'memory_bytes'"),
        ("local", {"limits": {"seconds": 0}}, "limit seconds is 0; expected a positive number"),
        ({"backend": "local", "limit": 1}, {}, "no option 'limit'; did you mean 'limits'"),
        ({"backend": "locl"}, {}, "did you mean 'local'"),
        ({"url": "http://localhost:1"}, {}, "or a mapping with such a 'backend'"),
        ({"backend": "local", "require": ["filse"]}, {"require": ["files"]}, "no guard is named 'filse'"),
        ({"backend": "local", "require": ["files"]}, {"require": ["filse"]}, "no guard is named 'filse'"),
        (["local"], {}, "or a mapping with such a 'backend'"),
        ("locl", {}, "did you mean 'local'"),
        ("local", {"require": "files"}, r"expected names in a tuple, \('files',\)"),
        ("local", {"require": ["filse"], "preload": "bare"}, "no guard is named 'filse'; did you mean 'files'"),
        ("remote", {"url": "127.0.0.1:8765"}, "url is '127.0.0.1:8765'; expected one like http://localhost:8765"),
    ],
)
def test_an_option_that_a_backend_does_not_have(backend: Any, options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_sandbox(backend, **options)


def test_a_file_that_cannot_be_had_is_named(session: Session) -> None:
    for asked in (session.get, session.listdir):
        with pytest.raises(FileNotFoundError) as absent:
            asked("absent")
        assert absent.value.filename == "absent"
    with pytest.raises(PermissionError, match="must stay below") as outside:
        session.put("../outside", b"")
    assert outside.value.filename == "../outside"


def test_the_least_limits_let_a_program_begin_and_tighter_ones_are_refused(sandbox: Sandbox) -> None:
    for few in ({"memory_bytes": 10}, {"open_files": 3}):
        with pytest.raises(UsageError, match=r"expected at least .*, which Python itself needs"):
            Limits(**few)  # type: ignore[arg-type]
    tight = Limits(memory_bytes=4 * 2**20, open_files=16, processes=1)
    assert sandbox.run_once("print(open('/dev/null').read() + 'ran')", limits=tight).stdout == "ran\n"


REFUSED: dict[str, tuple[Callable[[Session], object], str]] = {
    "a program that is a number": (lambda session: session.run(5), "Python source as a str, or a command"),  # type: ignore[arg-type]
    "a program in bytes": (lambda session: session.run(b"1"), "Python source as a str"),  # type: ignore[arg-type]
    "a command without words": (lambda session: session.run([]), "at least one word"),
    "stdin as text": (lambda session: session.run("1", stdin="text"), "stdin is 'text'.* expected bytes; encode"),  # type: ignore[arg-type]
    "a time that is none": (lambda session: session.run("1", timeout="5"), "positive number of seconds"),  # type: ignore[arg-type]
    "a file of text": (lambda session: session.put("a", "text"), "data is 'text'.* expected bytes"),  # type: ignore[arg-type]
    "a path that is a number": (lambda session: session.get(5), "path is 5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_of_another_type(session: Session, name: str) -> None:
    attempt, words = REFUSED[name]
    with pytest.raises(UsageError, match=words):
        attempt(session)
    assert session.run("print(1)").ok, "the session is as it was"


@pytest.mark.parametrize(
    ("files", "limits", "words"),
    [
        *((files, Limits(), "expected") for files in (["a"], {"a": "text"}, {5: b""})),
        ({"x": b"x" * 101, "y": b""}, Limits(file_bytes=100), "file x has 101 bytes; limit file_bytes is 100"),
        ({"x": b"1" * 60, "y": b"2" * 60}, Limits(scratch_bytes=100), "2 files of 120 bytes .* scratch_bytes 100"),
        ({"x": b"", "y": b""}, Limits(scratch_files=1), "2 files of 0 bytes .* scratch_files is 1"),
    ],
)
def test_files_that_are_no_bytes_or_cannot_fit_are_refused_by_name_before_they_are_sent(
    sandbox: Sandbox, files: Any, limits: Limits, words: str
) -> None:
    for attempt in (
        lambda: sandbox.start(files=files, limits=limits),
        lambda: sandbox.run_once("1", files=files, limits=limits),
        lambda: request_of(Execution("1", None, b"", False, limits, files), 1.0),  # of a SandboxFusion server
    ):
        with pytest.raises(UsageError, match=words):
            attempt()


def test_a_file_that_the_folder_cannot_hold_is_named(sandbox: Sandbox) -> None:
    for files, named in (({"a": b"", "../b": b""}, "../b"), ({f"a/b/c/{n}": b"" for n in range(9)}, "a/b/c/")):
        with pytest.raises(OSError, match=named):
            sandbox.run_once("1", files=files, limits=Limits(scratch_files=10))
