"""A sandbox without walls, for tests of graders: each session is a bare Python process with the same manners."""

import json
import selectors
import subprocess
import sys
import time

from palaestra.envs.sandboxes import Capabilities, Limits, Result, Sandbox, Session

_CHILD = """
import io, json, sys
lines = sys.stdin.buffer
scope = sys.modules["__main__"] = type(sys)("__main__")
answer = sys.stdout.buffer
for line in iter(lines.readline, b""):
    order = json.loads(line)
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(order["stdin"]), out, err
    try:
        exec(compile(order["program"], "<run>", "exec"), scope.__dict__)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback
        code = 1
        traceback.print_exc(file=err)
    reply = json.dumps([code, out.getvalue(), err.getvalue()]).encode()
    answer.write(b"%d\\n" % len(reply) + reply)
    answer.flush()
"""


LIBRARIES = False
"""Whether programs find what is installed, which takes longer to start."""


class BareSession(Session):
    limits = Limits()

    def __init__(self):
        self._process = None

    async def _run(self, asked, blocking):
        program, timeout, stdin, *_ = asked
        if self._process is None:
            command = [sys.executable, "-I", *["-S"] * (not LIBRARIES), "-c", _CHILD]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        begun = time.monotonic()
        self._process.stdin.write(json.dumps({"program": program, "stdin": stdin.decode()}).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            in_time = selector.select(timeout or 5.0)
        size = self._process.stdout.readline() if in_time else b""
        seconds = time.monotonic() - begun
        if not size.strip().isdigit():
            self.close()
            return Result(exit_code=None, timed_out=not in_time, state_lost=True, duration_s=seconds)
        code, out, err = json.loads(self._process.stdout.read(int(size)))
        return Result(stdout=out, stderr=err, exit_code=code, duration_s=seconds)

    async def _close(self, blocking):
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    async def _unused(self, *_):
        raise NotImplementedError

    _put = _get = _listdir = _reset = _fork = _unused


class BareSandbox(Sandbox):
    limits = Limits()

    def capabilities(self):
        return Capabilities("bare")

    async def _start(self, files, limits, blocking):
        return BareSession()

    async def _once(self, asked, blocking):
        with BareSession() as session:
            return await session._run(asked, blocking)

    def close(self):
        pass
