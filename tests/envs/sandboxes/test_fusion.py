"""What a SandboxFusion server says is read as it means it, and a server that errs or lies is never a result."""

import asyncio
import base64
import json
import subprocess
import sys

import httpx
import pytest

from palaestra.envs.sandboxes import Limits, open_sandbox
from palaestra.envs.sandboxes.remote import FusionSandbox, connection, fusion
from palaestra.envs.tools.python import Python
from palaestra.errors import Broken, SandboxUnavailable, UsageError


class Server(httpx.AsyncBaseTransport):
    """Answers what a test says; keeps what it was asked. Whoever looks whether it is there is refused."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def handle_async_request(self, request):
        if request.method == "GET":
            return httpx.Response(405, stream=httpx.ByteStream(b'{"detail":"Method Not Allowed"}'))
        return await self.answer(request)

    async def answer(self, request):
        self.asked.append((request.url.path, json.loads(await request.aread() or "null")))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            return answer()
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return httpx.Response(200, stream=httpx.ByteStream(body))


def refusal(status, text="", **headers):
    return lambda: httpx.Response(status, headers=headers, stream=httpx.ByteStream(text.encode()))


def said(status="Success", outcome="Finished", code=0, stdout="", stderr="", seconds=0.5, **more):
    run = {"status": outcome, "return_code": code, "stdout": stdout, "stderr": stderr, "execution_time": seconds}
    return {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}, **more}


def run(server, program="print(1)", patience=1.0, sandbox_limits=None, **given):
    with FusionSandbox("http://localhost:1", patience=patience, transport=server, limits=sandbox_limits) as sandbox:
        return sandbox.run_once(program, **given)


def test_a_request_says_what_the_server_reads():
    server = Server(said(stdout="1\n"))
    result = run(server, files={"a": b"\x00"}, timeout=3, stdin=b"in")
    assert (result.stdout, result.exit_code, result.ok, result.duration_s) == ("1\n", 0, True, 0.5)
    path, asked = server.asked[0]
    assert path == "/run_code"
    assert asked == {
        "code": "print(1)",
        "language": "python",
        "run_timeout": 3.0,
        "compile_timeout": 3.0,
        "memory_limit_MB": 512,
        "stdin": "in",
        "files": {"a": base64.b64encode(b"\x00").decode()},
        "fetch_files": [],
    }
    run(server, ["echo", "a b"])
    assert (server.asked[1][1]["language"], server.asked[1][1]["code"]) == ("bash", "echo 'a b'")
    assert server.asked[1][1]["stdin"] is None


def test_outcomes_become_results():
    failed = run(Server(said("Failed", code=3, stderr="oh")))
    assert (failed.exit_code, failed.stderr, failed.ok) == (3, "oh", False)
    late = run(Server(said("Failed", "TimeLimitExceeded", None, "so far")))
    assert (late.timed_out, late.limit_hit, late.exit_code, late.signal) == (True, "seconds", None, 9)
    assert late.stdout == "so far"
    killed = run(Server(said("Failed", code=-11)))
    assert (killed.exit_code, killed.signal) == (None, 11)
    compiled = said("Failed", code=1, stderr="no such word")
    compiled["compile_result"], compiled["run_result"] = compiled["run_result"], None
    assert run(Server(compiled)).stderr == "no such word"


def test_output_is_kept_from_both_ends():
    limits = Limits(output_bytes=10)
    result = run(Server(said(stdout="a" * 50 + "z" * 50)), sandbox_limits=limits)
    assert result.stdout == "aaaaa\n[... 90 of 100 bytes left out ...]\nzzzzz"
    assert (result.truncated, result.limit_hit, result.stdout_bytes) == (True, "output", 100)


FAILURES = {
    "failed: pod gone": {"status": "SandboxError", "message": "pod gone", "run_result": None},
    "failed: no bash": said("Success", "Error", None, stderr="no bash"),
    "failed: no pod": said("Failed", "Error", None, stderr=None) | {"message": "no pod"},
    "failed: it gave no reason": said("Failed", "Error", None, stderr=None),
    "failed: it gave no reason ": {"status": "SandboxError", "message": None},
    "status that is none": said("Splendid"),
    "run_result.status that is none": said(outcome="Odd"),
    "without a return_code": said(code=None),
}
LIES = [
    said(code="0"), said(code=True), said(code=2**40), said(stdout=["a"]), said(seconds="fast"), said(seconds=-1),
    said(seconds=float("inf")), {"status": "Success"}, {"status": "Success", "run_result": "fine"}, {"status": None},
    [], b"", b"<html>", b"[" * 100_000, b"\xff\xfe", b" " * (17 * 2**20), refusal(404, "not here"),
    refusal(503, "busy"), refusal(500, "Internal Server Error"), refusal(302, location="http://elsewhere"),
    httpx.ReadTimeout("late"), httpx.ConnectError("nobody"),
]  # fmt: skip


def test_a_server_that_errs_or_lies_is_broken_and_its_own_words_are_told():
    server = Server(None)
    with FusionSandbox("http://localhost:1", patience=0.05, transport=server) as sandbox:
        for words, answer in [*FAILURES.items(), *(("localhost", lie) for lie in LIES)]:
            server.answers = [answer]
            with pytest.raises(Broken, match=words.strip()):
                pytest.fail(f"{answer!r:.80} was taken for {sandbox.run_once('1')}")


@pytest.mark.parametrize("answer", [httpx.ConnectError("nobody"), refusal(502, "no such service")])
def test_a_server_that_is_not_there_is_noticed_when_the_sandbox_opens(monkeypatch, answer):
    monkeypatch.setattr(connection, "OPENING", 0.2)
    server = Server(answer)
    server.handle_async_request = server.answer
    with pytest.raises(SandboxUnavailable, match=r"http://localhost:1 gave no answer (.|\n)*url="):
        open_sandbox("fusion", url="http://localhost:1", transport=server)


def test_a_busy_server_is_asked_again():
    server = Server(refusal(503), httpx.ConnectError("restarting"), refusal(504), said(stdout="at last"))
    assert run(server, patience=60.0).stdout == "at last"
    assert len(server.asked) == 4


def test_a_server_that_never_answers_has_a_deadline(monkeypatch):
    monkeypatch.setattr(fusion, "GRACE", 0.1)

    class Silent(Server):
        async def answer(self, request):
            await asyncio.sleep(1000)

    async def ask(sandbox):
        async with asyncio.timeout(100):
            await sandbox.arun_once("print(1)", timeout=0.1)

    sandbox = FusionSandbox("http://localhost:1", patience=0.1, transport=Silent(None))
    with sandbox, pytest.raises(Broken, match="no answer"):
        asyncio.run(ask(sandbox))


@pytest.mark.parametrize(
    ("program", "printed", "error"),
    [
        ("x = 6\nx * 7", "42\n", ""), ("'é\\n'", "'é\\n'\n", ""), ("None", "", ""), ("x = 6", "", ""), ("", "", ""),
        ("print('a')\nsorted(n for n in globals() if n[0] != '_')", "a\n[]\n", ""),
        ("from __future__ import annotations\ndef f(x: missing): pass\n__name__", "'__main__'\n", ""),
        ("def f():\n    return 1 / 0\n\nf()", "", 'Traceback (most recent call last):\n  File "main.py", line 4, in '
         '<module>\n    f()\n  File "main.py", line 2, in f\n    return 1 / 0\n'),
        ("if:", "", '  File "main.py", line 1\n    if:\n'),
    ],
)  # fmt: skip
def test_f14_the_last_value_is_printed_there_and_the_program_notices_nothing(program, printed, error):
    server = Server(said())
    run(server, program, show_last=True, sandbox_limits=Limits(code_bytes=80))
    words = [sys.executable, "-I", "-X", "utf8", "-c", server.asked[0][1]["code"]]
    done = subprocess.run(words, capture_output=True, timeout=120)
    assert (done.stdout.decode(), done.returncode) == (printed, 1 if error else 0)
    assert done.stderr.decode().startswith(error) and bool(done.stderr) is bool(error)
    run(server, ["echo", "1"], show_last=True)
    assert server.asked[1][1]["code"] == "echo 1"


def test_a_stateless_toolkit_plays_on_it_and_one_that_keeps_a_session_is_refused_before():
    kit = type("Stateless", (Python,), {"stateful": False})(
        {"backend": "fusion", "url": "http://localhost:1", "transport": Server(said(stdout="42\n"))}
    )
    kit.start(None, None)
    assert asyncio.run(kit.run("6 * 7", show_last=kit.show_last)) == "42"
    kept = Python({"backend": "fusion", "url": "http://localhost:2", "transport": Server(said())})
    with pytest.raises(UsageError, match=r"Python keeps a session, and the sandbox 'fusion' has none; .* stateful"):
        kept.start(None, None)


def test_what_it_cannot_do_is_said():
    with open_sandbox("fusion", url="http://localhost:1/run_code/", transport=Server(said())) as sandbox:
        with pytest.raises(UsageError, match="no sessions"):
            sandbox.start()
        with pytest.raises(UsageError, match="no sessions"):
            asyncio.run(sandbox.astart())
        with pytest.raises(UsageError, match="positive number of seconds"):
            sandbox.run_once("1", timeout=0)
        assert not sandbox.capabilities().files
        assert asyncio.run(sandbox.arun_once("1")).ok
        assert sandbox.run_once("1" * 2**21).limit_hit == "code"
    with pytest.raises(SandboxUnavailable, match="files"):
        open_sandbox("fusion", url="http://localhost:1", require=["files"], transport=Server(said()))
    with pytest.raises(UsageError, match="422"):
        run(Server(refusal(422, "language")))
