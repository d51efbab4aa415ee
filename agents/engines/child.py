"""The program that `process` starts: a torch engine that receives its commands through a pipe.

It ends when the pipe closes, and so at the latest when its parent process ends. It then removes the folder that both
processes have used.
"""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.engines.weight_files import read_each
from palaestra.protocols import Completion, Request

_HEARTBEAT_SECONDS = 1.0
"""Seconds between heartbeats while no turn ends."""


class ReportingEngine(TorchEngine):
    """An engine that calls `after` at each step, also while a pause waits for turns.

    `after` sends heartbeats: if the parent gets no message for a long time, it takes the child for crashed.
    """

    after: Callable[[], None]

    def _step(self) -> list[Completion]:
        done = super()._step()
        self.after()
        return done


class EngineServer:
    """The engine, the pipe to the parent process, and the parent's ticket of each ticket of the engine."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.folder = ""
        self.engine: ReportingEngine
        self.parent_tickets: dict[int, int] = {}
        """The parent's ticket of each ticket of the engine."""
        self.sent_at = 0.0

    def serve(self) -> None:
        """Execute commands and send answers until the pipe closes."""
        self.execute(*self.connection.recv())
        while True:
            while self.connection.poll(0 if self.engine.busy else None):
                self.execute(*self.connection.recv())
                self.answer(self.engine.collect())
            self.answer(self.engine.poll())

    def answer(self, done: list[Completion]) -> None:
        """Send the turns that ended to the parent process."""
        if done:
            self.send("done", [replace(each, ticket=self.parent_tickets.pop(each.ticket)) for each in done])

    def heartbeat(self) -> None:
        """Send a heartbeat if nothing was sent for a second."""
        if time.monotonic() > self.sent_at + _HEARTBEAT_SECONDS:
            self.send("done", [])

    def send(self, kind: str, value: Any) -> None:
        """Send a message to the parent process, with the number of tokens sampled so far."""
        self.sent_at = time.monotonic()
        self.connection.send((kind, value, self.engine.sampled))

    def execute(self, command: str, *arguments: Any) -> None:
        """Execute a command. A turn or its cancellation gets no answer now; any other command is answered at once."""
        if command == "submit":
            self.submit(*arguments)
        elif command == "cancel":
            self.cancel(*arguments)
        else:
            act: Callable[..., Any] = getattr(self, command, None) or getattr(self.engine, command)
            self.send("ok", act(*arguments))

    def open(self, folder: str, dtype: str, attention: str, stops: list[int], options: dict[str, Any]) -> None:
        """Create the model and the engine. The command `weights` loads the weights later."""
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )
        self.folder, self.engine = folder, ReportingEngine(model, stops, **options)
        self.engine.after = self.heartbeat

    def weights(self, path: str, version: int) -> None:
        """Load new weights from a folder into the engine's model."""
        self.engine.update_weights(read_each(Path(path)), version)

    def cache_bytes(self) -> int:
        """Return the size of the cache in bytes."""
        return self.engine.held_bytes

    def submit(self, ticket: int, request: Request) -> None:
        """Submit a turn to the engine."""
        self.parent_tickets[self.engine.submit(request)] = ticket

    def cancel(self, ticket: int) -> None:
        """Cancel a turn if it has not ended."""
        for engine_ticket in [number for number, parent in self.parent_tickets.items() if parent == ticket]:
            self.engine.cancel(engine_ticket)
            del self.parent_tickets[engine_ticket]


def main(handle: int) -> None:
    """Run the engine for the pipe with the file descriptor `handle`, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process decides when it ends.
    torch.set_num_threads(1)
    child = EngineServer(Connection(handle))
    try:
        child.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        if child.folder:
            shutil.rmtree(child.folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
