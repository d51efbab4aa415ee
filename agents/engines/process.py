"""The built-in engine in a child process with its own copy of the weights, so that it samples while a trainer computes.

The child is a new Python process (never a fork) with one torch thread. Requests and completions go through a pipe, and
weights through files in memory, which are kept until the next weights come. If a child crashes, a new one is started
with the weights of these files, and gets all unanswered turns again. Repeated crashes without an answer raise
an error with the child's last output. The child ends when this process ends. Every wait has a timeout.

Left out: other machines (see the vLLM engine).
"""

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from palaestra.agents.engines.places import check_request
from palaestra.agents.engines.weight_files import expected, write_each
from palaestra.errors import PalaestraError, UsageError
from palaestra.protocols import Completion, PauseMode, Request

_MAX_CRASHES = 3
"""Number of crashes in a row without an answer after which an error is raised."""

_READER_SECONDS = 10.0
"""Timeout for the end of the thread that reads the messages of a child that has ended."""


class EngineLost(PalaestraError):
    """Raised if the child process does not answer, or if it has ended and cannot be started again."""


class _Died(Exception):
    """Raised if the child process has ended. A new one can then be started."""


class ProcessEngine:
    """Engine that samples from a copy of a causal language model in a child process."""

    def __init__(self, model: Any, stops: Iterable[int], *, deadline: float = 300.0, **options: Any) -> None:
        """Start the child. It must start, load weights, or send a heartbeat, each within `deadline` seconds.

        `options` are those of the child's `TorchEngine`.
        """
        self.version = 0
        self._longest = getattr(model.config, "max_position_embeddings", None) or 2**31
        self._deadline = deadline
        self._names = {name for name, _ in model.named_parameters()}
        self._options = options
        self._stops = sorted(stops)
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="palaestra-engine-", dir=memory))
        model.config.save_pretrained(self._folder)
        # A model without storage gets its weights by the first `update_weights`.
        outlined = any(weight.is_meta for weight in model.parameters())
        self._weights = None if outlined else self._write(model.named_parameters())
        self._dtype = str(model.dtype).removeprefix("torch.")
        # An implementation that a trainer registered in this process is unknown to the child; sdpa replaces it.
        self._attention = "eager" if model.config._attn_implementation == "eager" else "sdpa"
        self._tickets = count()
        self._live: dict[int, Request] = {}
        self._ready: list[Completion] = []
        self._sampled, self._sampled_before = 0, 0
        self._paused = self.released = False
        self._deaths = 0
        self._received_at = 0.0
        self._last_output = ""
        # Remove the folder at exit at the latest: otherwise its weights would stay in memory.
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        try:
            self._start()
        except _Died:
            self._restart()

    @property
    def shares_weights(self) -> bool:
        """Return False: the engine has its own copy of the weights."""
        return False

    @property
    def shares_memory(self) -> bool:
        """Return False: the engine may play on while the trainer learns."""
        return False

    @property
    def sampled(self) -> int:
        """Return the number of sampled tokens that all child processes have reported so far."""
        return self._sampled_before + self._sampled

    def submit(self, request: Request) -> int:
        """Send a turn to the child and return its ticket."""
        check_request(request, self._longest, self._options.get("cache_tokens"))
        if self._weights is None:
            raise UsageError("the engine has no weights yet; call update_weights before the first turn")
        ticket = next(self._tickets)
        self._live[ticket] = replace(request, messages=(), tools=(), ids=list(request.ids))
        if len(self._live) == 1:
            self._received_at = time.monotonic()
        self._notify("submit", ticket, self._live[ticket])
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return the answers received so far; wait up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        while True:
            try:
                self._listen(0.0 if self._ready else max(0.0, end - time.monotonic()))
                while not self._inbox.empty():
                    self._listen(0.0)
            except _Died:
                self._restart()
            if self._ready or time.monotonic() >= end:
                break
        done, self._ready = self._ready, []
        return done

    def cancel(self, ticket: int) -> None:
        """Cancel a turn. If its answer has come already, `poll` does not return it."""
        self._ready = [completion for completion in self._ready if completion.ticket != ticket]
        if self._live.pop(ticket, None) is not None:
            self._notify("cancel", ticket)

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Write the weights to files, and wait until the child has loaded them."""
        new = self._write(expected(tensors, self._names))
        old, self._weights, self.version = self._weights, new, version
        self._call("weights", str(new), version)
        if old is not None:
            shutil.rmtree(old)

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop sampling until `resume`."""
        self._call("pause", mode)
        self._paused = True

    def resume(self) -> None:
        """End a pause: sampling continues."""
        self._paused = False
        self._call("resume")

    def release(self) -> None:
        """Free the child's cache. Sampling stops until `reclaim`."""
        self._call("release")
        self.released = True

    def reclaim(self) -> None:
        """Allow sampling after `release`. The child's cache grows again when rows need it."""
        self.released = False
        self._call("reclaim")

    @property
    def held_bytes(self) -> int:
        """Return the size of the child's cache in bytes."""
        return int(self._call("cache_bytes"))

    def close(self) -> None:
        """End the child and remove its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self, tensors: Iterable[tuple[str, Any]]) -> Path:
        """Write the weights to a new folder; return its path. The child may still be reading the previous one."""
        return write_each(tensors, self._folder / str(time.monotonic_ns()))

    def _start(self) -> None:
        """Start a child; send it the weights, the pause or release of this engine, and all unanswered turns."""
        connection, child_connection = Pipe()
        self._stderr = (self._folder / "stderr.txt").open("w+b")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "palaestra.agents.engines.child", str(child_connection.fileno())],
            pass_fds=[child_connection.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            process_group=0,  # A signal to this process's group does not end the child: it ends with the pipe.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        )
        child_connection.close()
        self._connection = connection
        self._inbox: queue.SimpleQueue[tuple[str, Any, int] | None] = queue.SimpleQueue()
        # A thread empties the pipe: otherwise the child would wait while a trainer computes for minutes.
        self._reader = threading.Thread(target=_read, args=(connection, self._inbox), daemon=True)
        self._reader.start()
        self._received_at = time.monotonic()
        self._ask("open", str(self._folder), self._dtype, self._attention, self._stops, self._options)
        if self._weights is not None:
            self._ask("weights", str(self._weights), self.version)
        if self._paused:
            self._ask("pause", "keep")
        if self.released:
            self._ask("release")
        for ticket, request in self._live.items():
            self._send("submit", ticket, request)

    def _restart(self) -> None:
        """After a crash, start a new child process and submit all unanswered turns again."""
        while True:
            self._deaths += 1
            code = self._end()
            if self._deaths >= _MAX_CRASHES:
                raise EngineLost(
                    f"the engine's process ended {self._deaths} times without an answer, the last time with status "
                    f"{code}; its last output: {self._last_output or 'none'}"
                )
            self._sampled_before, self._sampled = self.sampled, 0
            try:
                return self._start()
            except _Died:
                continue

    def _end(self) -> int:
        """Kill the child if it still runs, keep the end of its output, and return its exit status."""
        if self._child.poll() is None:
            self._child.kill()
        code = self._child.wait()
        # The reader ends with the child. If it read on after `close`, it might read another file of the same number.
        self._reader.join(_READER_SECONDS)
        self._connection.close()
        if not self._stderr.closed:
            self._stderr.seek(0)
            self._last_output = self._stderr.read().decode("utf-8", "replace").strip()[-600:]
            self._stderr.close()
        return code

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise _Died from None

    def _notify(self, *message: Any) -> None:
        """Send a message that has no answer. If the child crashes, a new one gets the turns that are unanswered."""
        try:
            self._send(*message)
        except _Died:
            self._restart()

    def _listen(self, timeout: float) -> tuple[str, Any] | None:
        """Receive one message within `timeout` seconds. Return it if it answers a command; keep the turns in others."""
        try:
            message = self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            silent = time.monotonic() - self._received_at
            if self._live and not (self._paused or self.released) and silent > self._deadline:
                raise _Died from None
            return None
        if message is None:
            raise _Died
        kind, value, self._sampled = message
        self._received_at = time.monotonic()
        if kind != "done":
            return kind, value
        for completion in value:
            if self._live.pop(completion.ticket, None) is not None:  # Else it was cancelled meanwhile.
                self._ready.append(completion)
                self._deaths = 0
        return None

    def _ask(self, *message: Any) -> Any:
        """Send a command to the child, wait for the answer, and return its value."""
        self._send(*message)
        until = time.monotonic() + self._deadline
        while (remaining_seconds := until - time.monotonic()) > 0:
            answer = self._listen(min(remaining_seconds, 1.0))
            if answer is not None:
                return answer[1]
            if message[0] == "pause":  # While it waits for turns, the child sends heartbeats.
                until = self._received_at + self._deadline
        raise EngineLost(f"the engine's process did not answer {message[0]!r} in {self._deadline:.0f} s")

    def _call(self, *message: Any) -> Any:
        """Do the same as `_ask`, but if the child crashes, send the command to a new child."""
        while True:
            try:
                return self._ask(*message)
            except _Died:
                self._restart()


def _read(connection: Connection, inbox: "queue.SimpleQueue[tuple[str, Any, int] | None]") -> None:
    """Move messages from the pipe to the inbox until the pipe closes, then put None into the inbox."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError, TypeError):  # TypeError: closed by us while it reads.
        inbox.put(None)
