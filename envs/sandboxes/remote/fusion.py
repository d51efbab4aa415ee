"""A SandboxFusion server (arXiv:2412.00535) as a sandbox for single runs.

The recipes of Open-AgentRL use such a server.

`POST /run_code` with JSON, according to the server's `sandbox/server/sandbox_api.py` and `sandbox/runners/types.py` in
2026:

    asked     code, language, run_timeout, compile_timeout, memory_limit_MB (-1: none), stdin (text or null),
              files {path: base64}, fetch_files [path], args (of pytest)
    answered  status        Success | Failed (a time limit, or an exit status that is not 0) | SandboxError
              message       what failed, with SandboxError
              compile_result, run_result   null, or {status, execution_time, return_code, stdout, stderr}, each field
                            may be null; status is Finished | TimeLimitExceeded | Error
              files         {path: base64} of fetch_files
    A return_code below 0 is the signal that ended the program. Bodies of 422 say what is wrong with a request. The
    server keeps the first 1 MiB of each stream (other versions keep all). It has no token, queue figures or sessions.

By default the server isolates nothing (`isolation: none`) and relies on a container around it. It does not report its
isolation, so this backend claims no guards; use another backend if you need `require`. Left out: `/run_jupyter`, whose
state ends with the request, languages other than Python and shell commands, and fetching files, which a single run does
not need.
"""

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from pydantic import Field, TypeAdapter, ValidationError

from palaestra.endpoint.http import Response, RetryableError
from palaestra.endpoint.reply import UnreadableReply, plain
from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.connection import GRACE, TOKEN_ENV, SandboxServerConnection
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner.output import Capture
from palaestra.envs.sandboxes.sandbox import Execution, Files, Sandbox
from palaestra.errors import Broken, UsageError

if TYPE_CHECKING:
    import httpx

_ANSWER_BYTES = 16 * 2**20
"""Largest answer in bytes: two streams of 1 MiB, each byte up to six characters of JSON, and the other fields."""
_NO_SESSIONS = (
    "a SandboxFusion server has no sessions: each program runs in a fresh place; use run_once, or another backend"
)
_SHOWING = """\
def _show_last(source, name="main.py"):
    import ast, linecache, sys, traceback
    variables = globals()
    del variables["_show_last"]
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", 0, True), variables)
        value = last and eval(compile(ast.Expression(last.value), name, "eval", 0, True), variables)
        if value is not None:
            print(repr(value))
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        sys.exit(1)
_show_last("""
"""Code that runs the program, which follows as a string literal, and prints its last value."""


class FusionSandbox(Sandbox):
    """Runs single programs, in Python or as a command, on a SandboxFusion server.

    Only time and output are bounded by this class; the server is responsible for all other limits of a running program.
    """

    has_sessions = False

    def __init__(
        self,
        url: str,
        *,
        limits: Limits | Mapping[str, Any] | None = None,
        token_env: str = TOKEN_ENV,
        patience: float = 60.0,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`url` is the server's address without `/run_code`.

        `patience` is the number of seconds for which requests to a busy or unreachable server are repeated.
        """
        self.limits = Limits.of(limits)
        url = url.removesuffix("/").removesuffix("/run_code")
        self._connection = SandboxServerConnection("fusion", url, token_env, patience, "application/json", transport)
        # The server refuses the first request, which proves that it answers without running a program.
        self._connection.greet(
            "/run_code", self._greeted, _ANSWER_BYTES, "url= is where a SandboxFusion server answers"
        )

    def __repr__(self) -> str:
        return f"FusionSandbox({self._connection.address})"

    def capabilities(self) -> Capabilities:
        """Return capabilities without any guard, and a note why: the server does not report what it enforces."""
        note = "a SandboxFusion server does not say what it isolates; its default is nothing, so its container must"
        return Capabilities(backend="fusion", notes=(note, _NO_SESSIONS))

    def close(self) -> None:
        self._connection.close()

    async def _start(self, files: Files | None, limits: Limits, blocking: bool) -> NoReturn:
        raise UsageError(_NO_SESSIONS)

    async def _once(self, execution: Execution, blocking: bool) -> Result:
        limits = execution.limits
        seconds = limits.seconds if execution.timeout is None else arguments.seconds_of(execution.timeout)
        body = request_of(execution, seconds)
        if body is None:
            return Result(exit_code=1, limit_hit="code", stderr=f"the program is larger than {limits.code_bytes} bytes")

        def read(response: Response) -> Result:
            if response.status == 200:
                return result_of(response.body, seconds, limits)
            failure = self._connection.failure(response, "could not run a program")
            raise UsageError(str(failure)) if response.status == 422 else failure

        # A run that is sent again after a lost connection runs twice, each time in a new sandbox.
        return await self._connection.ask("/run_code", body, read, _ANSWER_BYTES, seconds + GRACE, blocking)

    def _greeted(self, response: Response) -> None:
        failure = self._connection.failure(response, "")
        if isinstance(failure, RetryableError):
            raise failure


def request_of(execution: Execution, seconds: float) -> bytes | None:
    """Return the body of a request, or None if the program or stdin is too large."""
    is_python, limits = isinstance(execution.program, str), execution.limits
    code = (
        execution.program
        if isinstance(execution.program, str)
        else shlex.join(arguments.words_of(execution.program) or ())
    )
    stdin, files = arguments.content("stdin", execution.stdin), arguments.files_of(execution.files, limits)
    if len(code.encode("utf-8", "replace")) > limits.code_bytes or len(stdin) > limits.code_bytes:
        return None
    code = code.encode("utf-8", "replace").decode()
    if execution.show_last and is_python:
        code = f"{_SHOWING}{code!r})\n"
    body: dict[str, Any] = {
        "code": code,
        "language": "python" if is_python else "bash",
        "run_timeout": seconds,
        "compile_timeout": seconds,
        "memory_limit_MB": max(limits.memory_bytes // 2**20, 1),
        "stdin": stdin.decode("utf-8", "replace") if stdin else None,
        "files": {path: base64.b64encode(data).decode() for path, data in files.items()},
        "fetch_files": [],
    }
    return json.dumps(body).encode()


@dataclass(frozen=True)
class _ProcessResult:
    """Result of one process on the server: the program or its compiler."""

    status: Literal["Finished", "TimeLimitExceeded", "Error"]
    execution_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    return_code: Annotated[int, Field(ge=-128, lt=2**31)] | None = None
    stdout: str | None = None
    stderr: str | None = None


@dataclass(frozen=True)
class _FusionResponse:
    """The fields of the server's answer that this module uses."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str | None = None
    compile_result: _ProcessResult | None = None
    run_result: _ProcessResult | None = None


_ANSWERS = TypeAdapter(_FusionResponse)


def result_of(body: bytes, seconds: float, limits: Limits) -> Result:
    """Return the Result in an answer of the server; raise `Broken` if the server failed."""
    try:
        answer = _ANSWERS.validate_json(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UnreadableReply(f"{'.'.join(map(str, first['loc'])) or 'a body'} that is none: {first['msg']}") from None
    part = answer.run_result or answer.compile_result
    if answer.status == "SandboxError" or (part is not None and part.status == "Error"):
        reasons = (part.stderr if part is not None and answer.status != "SandboxError" else None, answer.message)
        reason = next((plain(candidate) for candidate in reasons if candidate), "it gave no reason")
        raise Broken(f"the SandboxFusion server failed: {reason}")
    timed_out = part is not None and part.status == "TimeLimitExceeded"
    code = None if part is None else -9 if timed_out else part.return_code
    if part is None or code is None:
        raise UnreadableReply("a run without a result, or a result without a return_code")
    out, err = Capture(limits.output_bytes), Capture(limits.output_bytes)
    for output, text in ((out, part.stdout), (err, part.stderr)):
        output.feed((text or "").encode("utf-8", "replace"))
    return Result(
        stdout=out.text().decode("utf-8", "replace"),
        stderr=err.text().decode("utf-8", "replace"),
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        limit_hit="seconds" if timed_out else "output" if out.cut or err.cut else "",
        stdout_bytes=out.size,
        stderr_bytes=err.size,
        duration_s=seconds if part.execution_time is None else part.execution_time,
    )
