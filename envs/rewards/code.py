"""Grades a program that an agent wrote by hidden tests, in a sandbox where the program cannot read the tests.

    grade = await grade_program(program_of(attempt.answer), tests, sandbox="local")
    grade.fraction, grade.all_passed, grade.why

There are three kinds of tests (`code_tests`). A program that reads stdin runs in a new process for each case, and this
process compares its output. A function is called in a session of the program's own, and this process compares its
result, which is sent as a plain value. Tests in Python run in a second session, and each call they make is sent to the
program (`remote_calls`). Expected values are never in a process of the program, and a program that dies, hangs or sends
a false reply fails its case. Limits count processor time, so that a busy machine makes no program fail. `Broken` is
raised only if the sandbox fails, or if tests fail before they first call the program. `why` tells a person the input,
the expected and the actual output of the first failed test; so no agent may read it. Left out: finding the program in
an answer (`code_block`), and special judges.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from inspect import getsource
from typing import Any

from palaestra import tagged
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards import code_checker as checker
from palaestra.envs.rewards import empty_values, remote_calls
from palaestra.envs.rewards.code_checker import called, clipped, differing, replied, same_output
from palaestra.envs.rewards.code_tests import Case, HiddenTests
from palaestra.envs.sandboxes import Limits, Result, Sandbox, Session
from palaestra.envs.sandboxes.opening import SANDBOXES
from palaestra.errors import Broken, UsageError

GRADING = Limits(seconds=30.0, cpu_seconds=600.0, memory_bytes=2**30, output_bytes=8 * 2**20, code_bytes=64 * 2**20)
"""Limits of the grading sandbox, wider than those of tools: tests may be large, and a program prints its answers."""
COMPILE_SECONDS = 20.0
"""Seconds for compiling a program, which do not count otherwise: a busy machine must not make a program fail."""
PATIENCE = 3.0
"""Clock seconds that a program is allowed for each second of processor time: others use the machine as well."""
MAX_CALLS = 5000
"""Calls that tests in Python may make."""
_SLACK_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a program, in seconds of processor time; its limits by the clock are PATIENCE times as long."""

    seconds: float = 6.0
    """Seconds for one case, or one call."""
    total_seconds: float = 60.0
    """Seconds for all cases together; the cases that are left then count as failed."""
    tolerance: float = 0.0
    """Relative and absolute difference up to which two numbers count as equal."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Test results of a program."""

    compiled: bool = False
    passed: tuple[bool, ...] = field(default=())
    """One result per case; tests in Python are one case."""
    why: str = ""
    """Description of the first failure. No agent may read it, since it holds the expected output."""

    @property
    def fraction(self) -> float:
        """Return the share of the cases that passed, from 0 to 1."""
        return sum(self.passed) / len(self.passed) if self.passed else 0.0

    @property
    def all_passed(self) -> bool:
        """Return whether at least one case was tested and all cases passed."""
        return bool(self.passed) and all(self.passed)


async def grade_program(
    program: str | None, tests: HiddenTests, *, allowance: Allowance | None = None, sandbox: Where = "local"
) -> Grade:
    """Return the grade of a program by its tests; no test runs if `program` is None or does not compile."""
    if not isinstance(program, str | None) or not isinstance(tests, HiddenTests):
        raise UsageError(
            f"program is a {type(program).__name__} and tests are a {type(tests).__name__}; expected text or None, "
            "and what read_tests returns"
        )
    if program is None:
        return Grade(why="there is no program")
    try:
        program.encode()
    except UnicodeEncodeError:
        return Grade(why="the program is not valid Unicode text")
    backend, options = SANDBOXES.read(sandbox)
    opened = await asyncio.to_thread(SANDBOXES.shared, backend, **{**options, "limits": GRADING})  # It may start here.
    grading = _Grading(program, tests, allowance or Allowance(), opened)
    kind = grading.by_assertions if tests.code else grading.by_calls if tests.function else grading.by_stdin
    return await kind()


class _Grading:
    def __init__(self, program: str, tests: HiddenTests, allowance: Allowance, sandbox: Sandbox) -> None:
        self.program, self.tests, self.allowance, self.sandbox = program, tests, allowance, sandbox
        self.left = allowance.total_seconds
        self.why = ""
        self.loaded = Result()
        """Result of loading the program."""

    async def by_stdin(self) -> Grade:
        """Run each case in a process of its own."""
        compiles = f"compile({self.program!r}, '<solution>', 'exec')"
        compiled = await self.sandbox.arun_once(compiles, timeout=COMPILE_SECONDS)
        if not compiled.ok:
            return Grade(why=f"the program does not compile: {_ended(compiled)}")
        passed = []
        for case in self.tests.cases:
            cpu_seconds = min(self._allowed(), self.sandbox.limits.cpu_seconds) or 1.0
            limits = replace(self.sandbox.limits, cpu_seconds=cpu_seconds)
            result = await self._spend(self.sandbox.arun_once, self.program, stdin=case.input.encode(), limits=limits)
            good = result.ok and not result.truncated
            matches = [
                same_output(result.stdout, accepted, self.allowance.tolerance) for accepted in case.accepted if good
            ]
            passed.append(any(matches))
            if not passed[-1] and not self.why:
                head = self._numbered(len(passed), "" if good else _ended(result))
                rows = differing(result.stdout, case.accepted[0], self.allowance.tolerance)
                self._failed(head, given=clipped(case.input, repr), **rows)
        return Grade(True, tuple(passed), self.why)

    async def by_calls(self) -> Grade:
        """Run all cases in one session; if a case gets no reply, the next case gets a new session."""
        passed: list[bool] = []
        session: Session | None = None
        try:
            for case in self.tests.cases:
                if session is None and self.left > 0:
                    started = time.monotonic()
                    session, fault = await self._load()
                    if passed:  # The first time is free; a program that ended its session pays for another one.
                        self.left -= (time.monotonic() - started) / PATIENCE
                    if fault:
                        return Grade(why=fault)
                    await self._define(session)
                reply, ended = None, _ended(_NO_TIME)
                if session is not None:
                    reply, ended = await self._call(session, _arguments(case.input))
                passed.append(reply is not None and self._right(reply, case))
                if not passed[-1] and not self.why:
                    call_text = called(self.tests.function, _arguments(case.input))
                    expected = " or ".join(clipped(accepted, repr) for accepted in case.accepted)
                    head = self._numbered(len(passed), ended)
                    self._failed(head, given=call_text, expected=expected, got=replied(reply))
                if reply is None and session is not None:
                    await session.aclose()
                    session = None
        finally:
            if session is not None:
                await session.aclose()
        return Grade(True, tuple(passed), self.why)

    async def by_assertions(self) -> Grade:
        """Run tests and program in two sessions: calls are sent to the program, and plain values are sent back."""
        player, fault = await self._load()
        async with aclosing(player):
            if fault:
                return Grade(why=fault)
            async with aclosing(await self.sandbox.astart()) as judge:
                passed = await self._run_tests(judge, player)
        return Grade(True, (passed,), self.why)

    async def _run_tests(self, judge: Session, player: Session) -> bool:
        """Send the calls of the tests to the program, which starts at the first call.

        Return whether the tests passed.
        """
        token = secrets.token_hex(16)
        arguments = (self.tests.context, self.tests.code, self.tests.function, token)
        step = f"{_HARNESS}\ntests = Tests{arguments!r}\ntests.continue_with()"
        call_arguments, reply = "", None
        for calls in range(MAX_CALLS):
            result = await judge.arun(step, timeout=PATIENCE * self.allowance.seconds)
            self._count(result)
            reply_text = _said(result, token)
            request = (
                json.loads(reply_text) if reply_text else {"passed": False, "why": f"the tests ended: {_ended(result)}"}
            )
            if "passed" in request and not calls:  # The program has not run yet.
                raise Broken(f"the tests of {self.tests.function} do not get as far as a call of it: {request['why']}")
            if request.get("passed") is True:
                return True
            if "passed" in request:
                test, call = self._line(request.get("line")), called(self.tests.function, call_arguments)
                self._failed(f"a hidden test failed: {request['why']}", test=test, given=call, got=replied(reply))
                return False
            if not calls:
                await self._define(player)
            call_arguments = reply_text or ""
            reply, ended = await self._call(player, call_arguments) if self.left > 0 else (None, _ended(_NO_TIME))
            if reply is None:
                self._failed(f"a hidden test failed: {ended}", given=called(self.tests.function, call_arguments))
                return False
            step = f"tests.continue_with({reply!r})"
        self._failed(f"the tests call the program more than {MAX_CALLS} times")
        return False

    async def _load(self) -> tuple[Session, str]:
        """Return a session with the compiled program, which has not run yet, and the compile error or ""."""
        session = await self.sandbox.astart()
        try:
            arguments = (self.program, self.tests.context, self.tests.function)
            source = f"{_HARNESS}\nprogram = RemoteProgram{arguments!r}\nsay(True)"
            result = await session.arun(source, timeout=COMPILE_SECONDS)
        except BaseException:  # close the session whatever ended its opening, then raise it again
            await session.aclose()
            raise
        return session, "" if _said(result) == "true" else f"the program does not compile: {_ended(result)}"

    async def _define(self, session: Session) -> None:
        self.loaded = await self._spend(session.arun, f"program.run({self._allowed()})")

    async def _call(self, session: Session, arguments: str) -> tuple[str | None, str]:
        """Return the program's JSON reply to a call and "", or None and the reason why there is no reply."""
        result = await self._spend(session.arun, f"program.answer({arguments!r}, {self._allowed()})")
        reply = None if _gone(result) else _said(result)
        return reply, "" if reply is not None else _ended(self.loaded if _gone(self.loaded) else result)

    def _right(self, reply: str, case: Case) -> bool:
        longest = max(len(json.dumps(remote_calls.packed(accepted))) for accepted in case.accepted)
        if len(reply) > 4 * longest + _SLACK_CHARS:  # An equal value is never so long, and reading it takes time.
            return False
        try:
            value = checker.as_json(json.loads(reply)["value"])
            return any(checker.same_value(value, accepted, self.allowance.tolerance) for accepted in case.accepted)
        except checker.FORGED:
            return False

    async def _spend(self, run: Callable[..., Awaitable[Result]], program: str, **options: Any) -> Result:
        """Run code of the program within the time that is left."""
        if self.left <= 0:
            return _NO_TIME
        allowed = self._allowed()
        result = await run(program, timeout=PATIENCE * allowed, **options)
        self._count(result)
        return replace(result, timed_out=True) if result.cpu_s > allowed else result

    def _allowed(self) -> float:
        return max(min(self.allowance.seconds, self.left), 0.0)

    def _count(self, result: Result) -> None:
        self.left -= max(result.cpu_s, result.duration_s / PATIENCE)

    # Messages for people.

    def _numbered(self, number: int, ended: str) -> str:
        return f"hidden test {number} of {len(self.tests.cases)} failed{': ' if ended else ''}{ended}"

    def _failed(self, head: str, **rows: str) -> None:
        rows = {"loading": "" if self.loaded.ok else _ended(self.loaded), **rows}
        self.why = "\n".join((head, *(f"  {name:<8}  {row}" for name, row in rows.items() if row)))

    def _line(self, number: Any) -> str:
        """Return a line of the tests in Python, or "" for the number 0."""
        return clipped("".join(self.tests.code.splitlines()[number - 1 : number]).strip()) if number else ""


_HARNESS = "\n".join(
    re.sub(r"(?m)^from palaestra.*\n", "", getsource(module)) for module in (tagged, empty_values, remote_calls)
)
_NO_TIME = Result(exit_code=None, timed_out=True, limit_hit="seconds")


def _arguments(values: Any) -> str:
    return json.dumps({"args": remote_calls.packed(values), "kwargs": {}})


def _said(result: Result, token: str = "") -> str | None:
    """Return the JSON text after the last mark that a run printed; None if it printed no mark."""
    _, mark, text = result.stdout.rpartition(remote_calls.MARK + token)
    return text.strip() if mark else None


def _gone(result: Result) -> bool:
    """Return whether the session's process ended with the run."""
    return result.timed_out or result.state_lost


def _ended(result: Result) -> str:
    """Describe in one line how a failed run ended."""
    if result is _NO_TIME:
        return "no time was left for it"
    if result.timed_out or result.limit_hit == "cpu_seconds":
        return f"out of time after {result.duration_s:.1f} s, {result.cpu_s:.1f} s of them on the processor"
    limit = f"at its limit of {result.limit_hit}" if result.limit_hit else ""
    reasons = [limit, *result.stderr[-_SLACK_CHARS:].strip().splitlines()[-1:]]
    return clipped(": ".join(filter(None, reasons)) or f"it ended with status {result.exit_code}")
