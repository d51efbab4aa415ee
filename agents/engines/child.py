"""The program that `process` starts: a torch engine that takes its commands from a pipe.

It ends when the pipe closes, so with the process that started it, and then removes the folder that both have used.
"""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.protocols import Completion, Request

_SIGN_OF_LIFE = 1.0
"""Seconds between heartbeats while no turn ends."""


class Talking(TorchEngine):
    """Calls `after` at each step, also while a pause waits for turns: the parent takes a long silence for a crash."""

    after: Callable[[], None]

    def _step(self) -> list[Completion]:
        done = super()._step()
        self.after()
        return done


class EngineServer:
    """The engine behind the pipe, with the mapping of the parent's tickets to the engine's."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.folder = ""
        self.engine: Talking
        self.parent_tickets: dict[int, int] = {}
        """The parent's ticket of each ticket of the engine; `engine_tickets` is the inverse."""
        self.engine_tickets: dict[int, int] = {}
        self.said_at = 0.0

    def serve(self) -> None:
        """Execute commands and send answers until the pipe closes."""
        self.obey(*self.connection.recv())
        while True:
            while self.connection.poll(0 if self.engine.busy else None):
                self.obey(*self.connection.recv())
                self.answer(self.engine.collect())
            self.answer(self.engine.poll())

    def answer(self, done: list[Completion]) -> None:
        """Send the turns that ended."""
        if done:
            tickets = [self.parent_tickets.pop(completion.ticket) for completion in done]
            for ticket in tickets:
                del self.engine_tickets[ticket]
            pairs = zip(done, tickets, strict=True)
            self.say("done", [replace(completion, ticket=ticket) for completion, ticket in pairs])

    def live(self) -> None:
        """Send a heartbeat if nothing was sent for a second."""
        if time.monotonic() > self.said_at + _SIGN_OF_LIFE:
            self.say("done", [])

    def say(self, kind: str, value: Any) -> None:
        """Send a message, with the count of tokens sampled so far."""
        self.said_at = time.monotonic()
        self.connection.send((kind, value, self.engine.sampled))

    def obey(self, command: str, *arguments: Any) -> None:
        """Execute a command. Turns are answered later, all other commands at once."""
        if command == "submit":
            self.submit(*arguments)
        elif command == "cancel":
            self.cancel(*arguments)
        else:
            act: Callable[..., Any] = getattr(self, command, None) or getattr(self.engine, command)
            self.say("ok", act(*arguments))

    def open(self, folder: str, dtype: str, attention: str, stops: list[int], options: dict[str, Any]) -> None:
        """Make the model, whose weights come later, and the engine."""
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )
        self.folder, self.engine = folder, Talking(model, stops, **options)
        self.engine.after = self.live

    def weights(self, path: str, version: int) -> None:
        """Read new weights from a file."""
        self.engine.update_weights(load_file(path).items(), version)

    def cache_bytes(self) -> int:
        """Return the bytes of the cache."""
        return self.engine.held_bytes

    def submit(self, ticket: int, request: Request) -> None:
        """Begin a turn."""
        self.engine_tickets[ticket] = self.engine.submit(request)
        self.parent_tickets[self.engine_tickets[ticket]] = ticket

    def cancel(self, ticket: int) -> None:
        """Cancel a turn if it has not ended."""
        if ticket in self.engine_tickets:
            self.engine.cancel(self.engine_tickets[ticket])
            del self.parent_tickets[self.engine_tickets.pop(ticket)]


def main(handle: int) -> None:
    """Serve the pipe with this file descriptor."""
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
