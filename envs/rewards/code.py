"""Judging a program that an agent wrote by hidden tests, in a sandbox where it never meets them.

    grade = await grade_program(program_of(attempt.answer), tests, sandbox="local")
    grade.fraction, grade.all_passed, grade.why

There are three kinds of tests (`code_tests`). A program that reads stdin runs once a case, afresh, and what it printed
is compared here. A function is called in a session of the program's own, and what it returned, a plain value by then,
is compared here. Tests in Python run in a second session, and each call they make is sent to the program
(`remote_calls`). What was expected is never where the program could look, and a program that dies, stalls or lies fails
its case. Time is that of the processor, so that a machine which is busy with others makes no program wrong. Only the
sandbox itself, or tests that do not run before the program is first asked, is Broken. `why` says to a person what the
first failed test gave, expected and got; so no agent may read it. Left out: special judges.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from inspect import getsource
from typing import Any

from palaestra import tagged
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards import code_checker as checker
from palaestra.envs.rewards import remote_calls
from palaestra.envs.rewards.code_checker import called, clipped, differing, replied, same_output
from palaestra.envs.rewards.code_tests import Case, HiddenTests
from palaestra.envs.sandboxes import Limits, Result, Sandbox, Session
from palaestra.envs.sandboxes.opening import SANDBOXES
from palaestra.errors import Broken, UsageError

GRADING = Limits(seconds=30.0, cpu_seconds=600.0, memory_bytes=2**30, output_bytes=8 * 2**20, code_bytes=64 * 2**20)
"""Wider than what tools get: tests may be large, and a program prints its answers."""
COMPILE_SECONDS = 20.0
"""For compiling a program, which counts for nothing else: a machine that is busy must not make a program wrong."""
PATIENCE = 3.0
"""Seconds by the clock for each second of the processor that a program is allowed: others use the machine as well."""
MAX_CALLS = 5000
"""Calls that tests in Python may make."""
_SLACK_CHARS = 4096
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)")
_PYTHON = ("python", "py", "python3")


def program_of(text: str | None) -> str | None:
    """The last block that is fenced as Python, or the last without a language; None where there is none.

    A fence that stands indented, as in a list, has its lines indented as far: that much is taken off them.
    """
    named = {language: (indent, body) for indent, language, body in _blocks((text or "").replace("\r\n", "\n"))}
    found = named.get("python", named.get(""))
    if found is None:
        return None
    indent, body = found
    return re.sub(rf"^[ \t]{{0,{len(indent)}}}", "", body, flags=re.MULTILINE) if indent else body


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Indent, language and content of each fenced block. Every line is looked at once: an agent writes thousands."""
    lines = text.split("\n")
    closing: dict[str, list[int]] = {}
    """Where each fence stands alone, the last line first."""
    for at in range(len(lines) - 1, 0, -1):
        if set(alone := lines[at].strip(" \t")) in ({"`"}, {"~"}):
            closing.setdefault(alone, []).append(at)
    begins = 0
    for at, line in enumerate(lines):
        if at < begins or (opened := _FENCE.match(line)) is None:
            continue
        ends = closing.get(opened[2], [])
        while ends and ends[-1] <= at:
            ends.pop()
        if ends:
            begins = ends[-1] + 1
            language = opened[3].lower()
            content = "".join(f"{one}\n" for one in lines[at + 1 : ends[-1]])
            yield opened[1], "python" if language in _PYTHON else language, content


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a program may use. Seconds are of the processor; by the clock it has PATIENCE times as many."""

    seconds: float = 6.0
    """For one case, or one call."""
    total_seconds: float = 60.0
    """For all of them; the cases that are left then count as failed."""
    tolerance: float = 0.0
    """Relative and absolute difference in which two numbers count as the same."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How a program did."""

    compiled: bool = False
    passed: tuple[bool, ...] = field(default=())
    """Each case; tests in Python are one."""
    why: str = ""
    """What went wrong first: for people alone, since it holds what was expected."""

    @property
    def fraction(self) -> float:
        """Share of the cases that passed."""
        return sum(self.passed) / len(self.passed) if self.passed else 0.0

    @property
    def all_passed(self) -> bool:
        """Whether no case failed, and there was one."""
        return bool(self.passed) and all(self.passed)


async def grade_program(
    program: str | None, tests: HiddenTests, *, allowance: Allowance | None = None, sandbox: Where = "local"
) -> Grade:
    """Judge a program; without one, or where it does not compile, no test is run."""
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
        """How it ended that the program was loaded."""

    async def by_stdin(self) -> Grade:
        """Each case is a process of its own."""
        compiles = f"compile({self.program!r}, '<solution>', 'exec')"
        compiled = await self.sandbox.arun_once(compiles, timeout=COMPILE_SECONDS)
        if not compiled.ok:
            return Grade(why=f"the program does not compile: {_ended(compiled)}")
        passed = []
        for case in self.tests.cases:
            most = min(self._allowed(), self.sandbox.limits.cpu_seconds) or 1.0
            limits = replace(self.sandbox.limits, cpu_seconds=most)
            result = await self._spend(self.sandbox.arun_once, self.program, stdin=case.given.encode(), limits=limits)
            good = result.ok and not result.truncated
            wanted = [same_output(result.stdout, one, self.allowance.tolerance) for one in case.accepted if good]
            passed.append(any(wanted))
            if not passed[-1] and not self.why:
                head = self._numbered(len(passed), "" if good else _ended(result))
                rows = differing(result.stdout, case.accepted[0], self.allowance.tolerance)
                self._failed(head, given=clipped(case.given, repr), **rows)
        return Grade(True, tuple(passed), self.why)

    async def by_calls(self) -> Grade:
        """All cases share a session, until the program ends it."""
        passed: list[bool] = []
        session: Session | None = None
        try:
            for case in self.tests.cases:
                if session is None and self.left > 0:
                    begun = time.monotonic()
                    session, fault = await self._load()
                    if passed:  # The first time is free; a program that ended its session pays for another one.
                        self.left -= (time.monotonic() - begun) / PATIENCE
                    if fault:
                        return Grade(why=fault)
                    await self._define(session)
                reply, ended = None, _ended(_NO_TIME)
                if session is not None:
                    reply, ended = await self._call(session, _arguments(case.given))
                passed.append(reply is not None and self._right(reply, case))
                if not passed[-1] and not self.why:
                    given = called(self.tests.function, _arguments(case.given))
                    expected = " or ".join(clipped(one, repr) for one in case.accepted)
                    head = self._numbered(len(passed), ended)
                    self._failed(head, given=given, expected=expected, got=replied(reply))
                if reply is None and session is not None:
                    await session.aclose()
                    session = None
        finally:
            if session is not None:
                await session.aclose()
        return Grade(True, tuple(passed), self.why)

    async def by_assertions(self) -> Grade:
        """Two sessions; calls are sent from the tests to the program, and plain values back."""
        player, fault = await self._load()
        async with aclosing(player):
            if fault:
                return Grade(why=fault)
            async with aclosing(await self.sandbox.astart()) as judge:
                passed = await self._run_tests(judge, player)
        return Grade(True, (passed,), self.why)

    async def _run_tests(self, judge: Session, player: Session) -> bool:
        """Ask and answer until the tests are over. The program does not run before they have asked once."""
        token = secrets.token_hex(16)
        given = (self.tests.context, self.tests.code, self.tests.function, token)
        step = f"{_HARNESS}\ntests = Tests{given!r}\ntests.go_on()"
        asked, reply = "", None
        for calls in range(MAX_CALLS):
            result = await judge.arun(step, timeout=PATIENCE * self.allowance.seconds)
            self._count(result)
            said = _said(result, token)
            found = json.loads(said) if said else {"passed": False, "why": f"the tests ended: {_ended(result)}"}
            if "passed" in found and not calls:  # Nothing of the program has been near them.
                raise Broken(f"the tests of {self.tests.function} do not get as far as a call of it: {found['why']}")
            if found.get("passed") is True:
                return True
            if "passed" in found:
                test, call = self._line(found.get("line")), called(self.tests.function, asked)
                self._failed(f"a hidden test failed: {found['why']}", test=test, given=call, got=replied(reply))
                return False
            if not calls:
                await self._define(player)
            asked = said or ""
            reply, ended = await self._call(player, asked) if self.left > 0 else (None, _ended(_NO_TIME))
            if reply is None:
                self._failed(f"a hidden test failed: {ended}", given=called(self.tests.function, asked))
                return False
            step = f"tests.go_on({reply!r})"
        self._failed(f"the tests call the program more than {MAX_CALLS} times")
        return False

    async def _load(self) -> tuple[Session, str]:
        """A session with the program in it, and why it does not compile; nothing of it has run yet."""
        session = await self.sandbox.astart()
        try:
            given = (self.program, self.tests.context, self.tests.function)
            source = f"{_HARNESS}\nprogram = Program{given!r}\nsay(True)"
            result = await session.arun(source, timeout=COMPILE_SECONDS)
        except BaseException:  # close the session whatever ended its opening, then raise it again
            await session.aclose()
            raise
        return session, "" if _said(result) == "true" else f"the program does not compile: {_ended(result)}"

    async def _define(self, session: Session) -> None:
        self.loaded = await self._spend(session.arun, f"program.run({self._allowed()})")

    async def _call(self, session: Session, arguments: str) -> tuple[str | None, str]:
        """What the program answers to a call, as the JSON it claims; None where it died or took too long, and why."""
        result = await self._spend(session.arun, f"program.answer({arguments!r}, {self._allowed()})")
        reply = None if _gone(result) else _said(result)
        return reply, "" if reply is not None else _ended(self.loaded if _gone(self.loaded) else result)

    def _right(self, reply: str, case: Case) -> bool:
        longest = max(len(json.dumps(remote_calls.packed(one))) for one in case.accepted)
        if len(reply) > 4 * longest + _SLACK_CHARS:  # Nothing equal is so long, and reading it takes time.
            return False
        try:
            value = checker.listed(json.loads(reply)["value"])
            return any(checker.same_value(value, one, self.allowance.tolerance) for one in case.accepted)
        except checker.FORGED:
            return False

    async def _spend(self, run: Callable[..., Awaitable[Result]], program: str, **options: Any) -> Result:
        """Run something of the program's within what is left of the time."""
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

    # What a person reads.

    def _numbered(self, number: int, ended: str) -> str:
        return f"hidden test {number} of {len(self.tests.cases)} failed{': ' if ended else ''}{ended}"

    def _failed(self, head: str, **rows: str) -> None:
        rows = {"loading": "" if self.loaded.ok else _ended(self.loaded), **rows}
        self.why = "\n".join((head, *(f"  {name:<8}  {row}" for name, row in rows.items() if row)))

    def _line(self, number: Any) -> str:
        """A line of tests in Python; none is the number 0."""
        return clipped("".join(self.tests.code.splitlines()[number - 1 : number]).strip()) if number else ""


_HARNESS = "\n".join(re.sub(r"(?m)^from palaestra.*\n", "", getsource(one)) for one in (tagged, remote_calls))
_NO_TIME = Result(exit_code=None, timed_out=True, limit_hit="seconds")


def _arguments(given: Any) -> str:
    return json.dumps({"args": remote_calls.packed(given), "kwargs": {}})


def _said(result: Result, token: str = "") -> str | None:
    """The JSON text behind the last mark that a run printed."""
    _, mark, text = result.stdout.rpartition(remote_calls.MARK + token)
    return text.strip() if mark else None


def _gone(result: Result) -> bool:
    """Whether a run took the session's process with it."""
    return result.timed_out or result.state_lost


def _ended(result: Result) -> str:
    """How a run ended that did not end well, in one line."""
    if result is _NO_TIME:
        return "no time was left for it"
    if result.timed_out or result.limit_hit == "cpu_seconds":
        return f"out of time after {result.duration_s:.1f} s, {result.cpu_s:.1f} s of them on the processor"
    limit = f"at its limit of {result.limit_hit}" if result.limit_hit else ""
    said = [limit, *result.stderr[-_SLACK_CHARS:].strip().splitlines()[-1:]]
    return clipped(": ".join(filter(None, said)) or f"it ended with status {result.exit_code}")
