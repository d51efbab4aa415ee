"""A sandbox in this process, for tests of toolkits: it runs the tests' own programs and enforces nothing.

`script` holds results to come; without any, a program is executed for real. Words of a command are joined and printed.
"""

import asyncio
import contextlib
import copy
import io
import traceback

from palaestra.envs.sandboxes import Capabilities, Limits, Result, Sandbox, Session
from palaestra.errors import UsageError

script = []
"""Results, or exceptions, of the next runs."""
sessions = []
"""All that were started, forks included."""
asked = []
"""(program, seconds, show_last) of every run."""
opened = []
"""The options of every sandbox that was opened."""
start_gate = None
"""An asyncio.Event that starting sessions wait for."""


def forget():
    global start_gate
    start_gate = None
    for record in (script, sessions, asked, opened):
        record.clear()


def execute(program, variables, show_last):
    if not isinstance(program, str):
        return Result(stdout=" ".join(program) + "\n")
    out, value = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            try:
                code = compile(program, "<python>", "eval") if show_last else None
            except SyntaxError:
                code = None
            if code is None:
                exec(program, variables)
            elif (found := eval(code, variables)) is not None:
                value = repr(found)
        except Exception:
            return Result(stdout=out.getvalue(), stderr=traceback.format_exc(limit=0), exit_code=1, duration_s=0.1)
    return Result(stdout=out.getvalue(), value=value, duration_s=0.1)


class FakeSession(Session):
    def __init__(self, sandbox, files=None, limits=None):
        self.sandbox, self.files, self.limits = sandbox, dict(files or {}), limits
        self.variables, self.closed, self.running = {}, 0, 0
        sessions.append(self)

    async def _run(self, run, blocking):
        assert not self.running, "a session runs one program at a time"
        self.running += 1
        if not blocking:
            await asyncio.sleep(0.001)
        self.running -= 1
        asked.append((run.program, run.timeout, run.show_last))
        if script:
            found = script.pop(0)
            if isinstance(found, Exception):
                raise found
            return found
        return execute(run.program, self.variables, run.show_last)

    async def _put(self, path, data, blocking):
        self.files[path] = data

    async def _get(self, path, blocking):
        return self.files[path]

    async def _listdir(self, path, blocking):
        return sorted(self.files)

    async def _reset(self, blocking):
        self.variables.clear()

    async def _fork(self, blocking):
        if not self.sandbox.forks:
            raise UsageError("no forks here")
        made = FakeSession(self.sandbox, self.files, self.limits)
        made.variables = {name: copy.deepcopy(value) for name, value in self.variables.items() if name[:2] != "__"}
        return made

    async def _close(self, blocking):
        self.closed += 1


class FakeSandbox(Sandbox):
    def __init__(self, forks=True, walls=True, limits=None, **options):
        self.walls, self.forks, self.limits = walls, forks, limits or Limits()
        opened.append({"forks": forks, "limits": limits, **options})

    def capabilities(self):
        return Capabilities("fake", files=self.walls, network=True, processes=True, forks=self.forks)

    async def _start(self, files, limits, blocking):
        if start_gate is not None:
            await start_gate.wait()
        return FakeSession(self, files, limits)

    async def _once(self, run, blocking):
        session = FakeSession(self, run.files, run.limits)
        try:
            return await session._run(run, blocking)
        finally:
            session.close()

    def close(self):
        pass
