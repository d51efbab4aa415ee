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

    def run(self, program, *, timeout=None, stdin=b"", show_last=False):
        asked.append((program, timeout, show_last))
        if script:
            found = script.pop(0)
            if isinstance(found, Exception):
                raise found
            return found
        return execute(program, self.variables, show_last)

    async def arun(self, program, *, timeout=None, stdin=b"", show_last=False):
        assert not self.running, "a session runs one program at a time"
        self.running += 1
        await asyncio.sleep(0.001)
        self.running -= 1
        return self.run(program, timeout=timeout, show_last=show_last)

    def put(self, path, data):
        self.files[path] = data

    async def aput(self, path, data):
        self.files[path] = data

    def get(self, path):
        return self.files[path]

    async def aget(self, path):
        return self.files[path]

    def listdir(self, path="."):
        return sorted(self.files)

    async def alistdir(self, path="."):
        return sorted(self.files)

    def reset(self):
        self.variables.clear()

    async def areset(self):
        self.reset()

    def fork(self):
        if not self.sandbox.forks:
            raise UsageError("no forks here")
        made = FakeSession(self.sandbox, self.files, self.limits)
        made.variables = {name: copy.deepcopy(value) for name, value in self.variables.items() if name[:2] != "__"}
        return made

    async def afork(self):
        return self.fork()

    def close(self):
        self.closed += 1


class FakeSandbox(Sandbox):
    def __init__(self, forks=True, walls=True, limits=None, **options):
        self.walls, self.forks, self.limits = walls, forks, limits or Limits()
        opened.append({"forks": forks, "limits": limits, **options})

    def capabilities(self):
        return Capabilities("fake", files=self.walls, network=True, processes=True, forks=self.forks)

    def start(self, *, files=None, limits=None):
        return FakeSession(self, files, limits)

    async def astart(self, *, files=None, limits=None):
        if start_gate is not None:
            await start_gate.wait()
        return self.start(files=files, limits=limits)

    def _once(self, asked):
        session = FakeSession(self, asked.files, asked.limits)
        try:
            return session.run(asked.program, timeout=asked.timeout, show_last=asked.show_last)
        finally:
            session.close()

    async def _aonce(self, asked):
        await asyncio.sleep(0.001)
        return self._once(asked)

    def close(self):
        pass
