"""Runs the author's harness of an episode: an `async def run` on the harnesses' event loop, a plain `run` in a thread,
a `command` as a program whose process group is killed at the end of the episode.

The event loop is not that of the HTTP servers, so code that blocks it holds up other harnesses, but no server. Left
out: what the end of a harness means for its episode (`machine`).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from palaestra.envs.harness.author import Harness, Model
from palaestra.envs.harness.world import Over, World
from palaestra.envs.running import leash
from palaestra.envs.running.inbox import Inbox
from palaestra.envs.running.runner import shared_runner
from palaestra.envs.running.work import Conditions, Pending, Work, WorkMode
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect
from palaestra.plain import to_plain

MAX_THREADS = 2048
"""Maximum number of plain `run`s and of commands at once; more wait for a thread."""
_NO_LIMIT = float("inf")
_WELL = "it ended with status 0"
"""Start of what `leash` writes for a command that has ended well."""
_TAIL_BYTES = 64 * 2**10
"""Number of bytes of a command's output that are kept; its answer is the last line."""


def start(play: Harness, task: Task, model: Model, world: World, where: str, slot: int) -> Callable[[], None]:
    """Start the harness of an episode, and return a function that stops it."""
    program = _Program(play.command) if play.command else None
    run: Callable[[], Any]
    if program is None and iscoroutinefunction(play.run):
        mode, run = WorkMode.ASYNC, partial(_awaited, play.run, task, model, world)
    else:
        call_run = partial(play.run, task, model) if program is None else partial(program.run, task, model)
        mode, run = WorkMode.BLOCKING, partial(_called, call_run, world)
    pending = Pending((work := Work(f"run of {where}", run, Conditions(mode, _NO_LIMIT)),))
    pending.slot = slot
    runner = shared_runner("harness", MAX_THREADS)
    runner.start((pending,), Inbox(where))
    if work.error is not None:  # No further thread is started, say.
        world.report(Over(None, work.error))

    def stop() -> None:
        if program is not None:
            program.kill()
        elif not work.over:
            runner.give_up(pending)

    return stop


async def _awaited(run: Callable[..., Coroutine[Any, Any, Any]], task: Task, model: Model, world: World) -> None:
    """Run an `async def run`, and report its end; no cancelled one reports, for its episode has ended."""
    try:
        over = Over(await run(task, model))
    except (Exception, SystemExit) as error:
        over = Over(None, error)
    world.report(over)


def _called(run: Callable[[], Any], world: World) -> None:
    """Run a plain `run` or a command in this thread, and report its end."""
    try:
        over = Over(run())
    except BaseException as error:  # Whatever ends it, the episode must not wait for it.
        over = Over(None, error)
    world.report(over)


class _Program:
    """A command that runs as the harness of one episode."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def run(self, task: Task, model: Model) -> str | None:
        """Run the command to its end, and return the last line of its output; None if it has written nothing."""
        task_json = {"id": task.id, "prompt": task.prompt, "data": to_plain(task.data, "Task.data")}
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
            stdin.write(json.dumps(task_json).encode())
            stdin.seek(0)
            program = str(Path(leash.__file__).resolve())
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(os.getpid()), *self._command],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **model.env},
                start_new_session=True,  # A process group of its own from the first moment: `kill` needs it.
            )
            assert self._process.stdout is not None
            tail = b""
            with self._process.stdout as stdout:
                if self._killed:
                    self.kill()
                while part := os.read(stdout.fileno(), _TAIL_BYTES):
                    tail = (tail + part)[-_TAIL_BYTES:]
            self._process.wait()
            stderr.seek(0)
            end = stderr.read().decode(errors="replace").strip()
        if not end.startswith(_WELL):
            raise RuntimeError(f"{self._command[0]}: {end or 'it was killed'}")
        lines = tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else None

    def kill(self) -> None:
        """Kill the command and all that it has started in its process group."""
        self._killed = True
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def answer_of(owner: str, over: Over) -> str | None:
    """Return the answer of a harness that has returned; raise EnvironmentDefect if it is no text."""
    if over.answer is not None and not isinstance(over.answer, str):
        raise EnvironmentDefect(f"{owner}.run returned {over.answer!r:.100}; expected the answer's text, or None")
    return over.answer
