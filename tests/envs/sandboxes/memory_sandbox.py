"""A sandbox in memory, whose programs are a few words: what a client and a server do around one can be tested alone.

say TEXT | count (how often it ran in this session) | wait SECONDS | gate (until a test sets `gate`) | echo (stdin) |
break | bytes N | defect
"""

import asyncio
import errno
import threading

from palaestra.envs.sandboxes import Capabilities, Limits, Result, Sandbox, Session
from palaestra.errors import Broken, UsageError


class MemorySession(Session):
    def __init__(self, sandbox, files, limits):
        self.sandbox, self.files, self.limits, self.counted, self.open = sandbox, dict(files or {}), limits, 0, True
        sandbox.sessions.append(self)

    async def _run(self, asked, blocking):
        assert not blocking, "a server must not block its loop"
        program, stdin, show_last = asked.program, asked.stdin, asked.show_last
        if not isinstance(program, str):
            return Result(stdout=" ".join(program))
        word, _, rest = program.partition(" ")
        self.sandbox.ran.append(program)
        self.counted += 1
        self.sandbox.busy += 1
        try:
            if word == "wait":
                await asyncio.sleep(float(rest))
            while word == "gate" and not self.sandbox.gate.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.sandbox.cancelled.append(program)
            raise
        finally:
            self.sandbox.busy -= 1
        if word == "break":
            raise Broken("the disk has melted")
        if word == "usage":
            raise UsageError("never ask that")
        if word == "defect":
            raise ZeroDivisionError("mine")
        if word == "bytes":
            return Result(stdout="é" * int(rest), stdout_bytes=2 * int(rest))
        said = {"say": rest, "count": str(self.counted), "echo": stdin.decode()}.get(word, "")
        return Result(stdout=said, value=repr(rest) if show_last else None, duration_s=0.25, stdout_bytes=len(said))

    async def _put(self, path, data, blocking):
        self.files[path] = data

    async def _get(self, path, blocking):
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.files[path]

    async def _listdir(self, path, blocking):
        return sorted(self.files)

    async def _reset(self, blocking):
        self.files, self.counted = {}, 0

    async def _fork(self, blocking):
        fork = MemorySession(self.sandbox, self.files, self.limits)
        fork.counted = self.counted
        return fork

    async def _close(self, blocking):
        self.open = False


class MemorySandbox(Sandbox):
    def __init__(self, limits=None):
        self.limits = limits or Limits()
        self.sessions, self.ran, self.cancelled, self.busy = [], [], [], 0
        self.gate = threading.Event()
        self.found = Capabilities(
            backend="memory", files=True, memory="tree", landlock=3, notes=("made of air",), forks=True
        )

    @property
    def alive(self):
        return [session for session in self.sessions if session.open]

    def capabilities(self):
        return self.found

    async def _start(self, files, limits, blocking):
        assert not blocking, "a server must not block its loop"
        await asyncio.sleep(0)
        return MemorySession(self, files, limits)

    async def _once(self, asked, blocking):
        session = MemorySession(self, asked.files, asked.limits)
        try:
            return await session._run(asked, blocking)
        finally:
            session.close()

    def close(self):
        for session in self.sessions:
            session.close()
