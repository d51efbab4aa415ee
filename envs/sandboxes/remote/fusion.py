"""A SandboxFusion server (arXiv:2412.00535) as a sandbox for single runs: what Open-AgentRL's recipes use.

`POST /run_code`, JSON, as the server's `sandbox/server/sandbox_api.py` and `sandbox/runners/types.py` read in 2026:

    asked     code, language, run_timeout, compile_timeout, memory_limit_MB (-1: none), stdin (text or null),
              files {path: base64}, fetch_files [path], args (of pytest)
    answered  status        Success | Failed (a time limit, or an exit status that is not 0) | SandboxError
              message       what failed, with SandboxError
              compile_result, run_result   null, or {status, execution_time, return_code, stdout, stderr}, each field
                            may be null; status is Finished | TimeLimitExceeded | Error
              files         {path: base64} of fetch_files
    A return_code below 0 is the signal that ended the program. Bodies of 422 say what is wrong with a request. The
    server keeps the first 1 MiB of each stream (others kept all), knows no token, no queue figures and no sessions.

By default that server isolates nothing (`isolation: none`): a container around it is the wall. It says so nowhere over
the wire, so this backend claims no guard at all; `require` them of another backend. Left out: `/run_jupyter`, whose
state ends with the request, other languages than Python and shell words, and fetching files, which one run needs not.
"""

import base64
import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from palaestra.endpoint.reply import Unreadable, parse, plain
from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.background import Background
from palaestra.envs.sandboxes.remote.exchange import Again, Exchange, beginning, retry_after
from palaestra.envs.sandboxes.remote.service import OPENING
from palaestra.envs.sandboxes.remote.wire import TOKEN_ENV, run_seconds, seconds_of, text_of
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.sandbox import OneShot, Sandbox
from palaestra.errors import Broken, SandboxUnavailable, UsageError

if TYPE_CHECKING:
    import httpx

_GRACE = 20.0
_ANSWER_BYTES = 16 * 2**20
"""Of an answer: two streams of 1 MiB, each byte of which may be six characters of JSON, and what is around them."""
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
"""What comes before a program, as a literal, whose last value is to be printed; there it runs as it would alone."""
_AGAIN = {408, 425, 429, 502, 503, 504}


class FusionSandbox(Sandbox):
    """`run_once` of Python or of a command. Its time and its output are bounded here, the rest is that server's."""

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
        """`url` goes up to and without `/run_code`.

        `patience` is how long a server that is busy or cannot be reached is asked again.
        """
        self.limits = Limits.of(limits)
        self._exchange = Exchange(
            url.removesuffix("/").removesuffix("/run_code"), token_env, "application/json", patience, transport
        )
        self._background = Background("palaestra-fusion-sandbox")
        try:
            self._background.wait(self._greet(), 2 * OPENING + _GRACE)
        except Broken as error:
            self.close()
            raise SandboxUnavailable("fusion", str(error), ["url= is where a SandboxFusion server answers"]) from None
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"FusionSandbox({self._exchange.address})"

    def capabilities(self) -> Capabilities:
        """None: the server does not say what it enforces."""
        note = "a SandboxFusion server does not say what it isolates; its default is nothing, so its container must"
        return Capabilities(backend="fusion", notes=(note, _NO_SESSIONS))

    def start(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> NoReturn:
        raise UsageError(_NO_SESSIONS)

    async def astart(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> NoReturn:
        raise UsageError(_NO_SESSIONS)

    def _once(self, asked: OneShot) -> Result:
        latest = self._exchange.patience + run_seconds(asked.timeout, asked.limits) + 2 * _GRACE
        return self._background.wait(self._asked(asked), latest)

    async def _aonce(self, asked: OneShot) -> Result:
        return await self._background.join(self._asked(asked))

    def close(self) -> None:
        self._background.close(self._exchange.aclose())

    async def _greet(self) -> None:
        """Whether anybody answers. This question is refused, which is an answer too: a run would cost a program."""

        async def attempt() -> None:
            status, headers, data = await self._exchange.post("/run_code", None, _ANSWER_BYTES)
            if status in _AGAIN:
                raise Again(self._told(status, data), retry_after(headers))

        await self._exchange.patiently(attempt, "the first question", OPENING, min(OPENING, self._exchange.patience))

    def _told(self, status: int, data: bytes) -> str:
        return f"it answered {status}: {self._exchange.shown(beginning(data))}"

    async def _asked(self, asked: OneShot) -> Result:
        limits = asked.limits
        seconds = run_seconds(asked.timeout, limits)
        body = request_of(asked, seconds)
        if body is None:
            return Result(exit_code=1, limit_hit="code", stderr=f"the program is larger than {limits.code_bytes} bytes")

        async def attempt() -> Result:
            return self._judge(*await self._exchange.post("/run_code", body, _ANSWER_BYTES), seconds, limits)

        try:
            # A run that is sent again after a lost connection runs twice, each time in a fresh place.
            return await self._exchange.patiently(attempt, "run_code", seconds + _GRACE)
        except Unreadable as error:
            raise Broken(f"{self._exchange.address} answered {self._exchange.shown(str(error))}") from None

    def _judge(self, status: int, headers: Mapping[str, str], data: bytes, seconds: float, limits: Limits) -> Result:
        told = self._told(status, data)
        if status in _AGAIN:
            raise Again(told, retry_after(headers))
        if status == 422:
            raise UsageError(f"{self._exchange.address}: {told}")
        if status != 200:
            raise Broken(f"{self._exchange.address}: {told}")
        return result_of(parse(data), seconds, limits)


def request_of(asked: OneShot, seconds: float) -> bytes | None:
    """The body of a request; None for a program that is too large."""
    is_python, limits = isinstance(asked.program, str), asked.limits
    code = asked.program if isinstance(asked.program, str) else shlex.join(arguments.words_of(asked.program) or ())
    stdin, files = arguments.content("stdin", asked.stdin), arguments.files_of(asked.files, limits)
    if len(code.encode("utf-8", "replace")) > limits.code_bytes or len(stdin) > limits.code_bytes:
        return None
    code = code.encode("utf-8", "replace").decode()
    if asked.show_last and is_python:
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


def result_of(document: Mapping[str, Any], seconds: float, limits: Limits) -> Result:
    """What the server says a run came to."""
    status = text_of(document, "status", 100)
    if status == "SandboxError":
        raise _failed(document.get("message"))
    if status not in ("Success", "Failed"):
        raise Unreadable(f"status {status!r}; expected Success, Failed or SandboxError")
    compiled, ran = (_part(document, name) for name in ("compile_result", "run_result"))
    part = ran or compiled
    if part is None:
        raise Unreadable("neither a compile_result nor a run_result")
    outcome = text_of(part, "status", 100)
    if outcome == "Error":
        raise _failed(part.get("stderr"), document.get("message"))
    if outcome not in ("Finished", "TimeLimitExceeded"):
        raise Unreadable(f"a run of status {outcome!r}; expected Finished, TimeLimitExceeded or Error")
    timed_out = outcome == "TimeLimitExceeded"
    code = _exit_of(part) if not timed_out else -9
    stdout, stderr = (_stream(part, name) for name in ("stdout", "stderr"))
    kept = [shorten(stream, limits.output_bytes) for stream in (stdout, stderr)]
    cut = any(len(stream) > limits.output_bytes for stream in (stdout, stderr))
    return Result(
        stdout=kept[0],
        stderr=kept[1],
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        limit_hit="seconds" if timed_out else "output" if cut else "",
        stdout_bytes=len(stdout),
        stderr_bytes=len(stderr),
        state_lost=False,
        duration_s=seconds if part.get("execution_time") is None else seconds_of(part, "execution_time"),
    )


def _failed(*reasons: Any) -> Broken:
    """Of a server that could not run a program, by its own account."""
    reason = next((plain(str(one)) for one in reasons if one), "it gave no reason")
    return Broken(f"the SandboxFusion server failed: {reason}")


def shorten(data: bytes, most: int) -> str:
    """Head and tail of a stream, with a line that says what is missing between them."""
    if len(data) <= most:
        return data.decode("utf-8", "replace")
    head, tail = data[: most - most // 2], data[len(data) - most // 2 :]
    left_out = len(data) - len(head) - len(tail)
    middle = f"\n[... {left_out} of {len(data)} bytes left out ...]\n"
    return head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    part = document.get(name)
    if part is not None and not isinstance(part, dict):
        raise Unreadable(f"{name} is a {type(part).__name__}; expected an object or null")
    return part


def _exit_of(part: Mapping[str, Any]) -> int:
    code = part.get("return_code")
    if not isinstance(code, int) or isinstance(code, bool) or not -128 <= code < 2**31:
        raise Unreadable(f"return_code is {code!r}; expected an exit status, or a signal below 0")
    return code


def _stream(part: Mapping[str, Any], name: str) -> bytes:
    text = part.get(name)
    if text is not None and not isinstance(text, str):
        raise Unreadable(f"{name} is a {type(text).__name__}; expected a text or null")
    return (text or "").encode("utf-8", "replace")
