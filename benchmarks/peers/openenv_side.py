"""openenv-core's side of `make bench-envs`: its server on loopback, with a WebSocket session per environment.

The server is a separate process whose CPU time counts. It allows as many sessions as needed, where the suite's template
allows one. It ends when the connection to this program closes.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterable
from typing import Any

from drive import TAG, Lockstep, Setting, answer, question, serve, wait_and_evaluate
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient

SECONDS_TO_START = 60


class Say(Action):
    """Action with the agent's text."""

    text: str


class Seen(Observation):
    """Observation with the text for the agent."""

    text: str = ""


class Calculator(Environment):
    """Environment that asks for a product."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    latency = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._state, self._index = State(episode_id="", step_count=0), 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        """Begin an episode; the seed chooses the problem."""
        self._index = seed or 0
        self._state = State(episode_id=episode_id or "", step_count=0)
        return Seen(text=question(self._index))

    def step(self, action: Say, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        """Process one turn of the agent."""
        self._state.step_count += 1
        match = TAG.search(action.text)
        if match is None:
            return Seen(done=True, reward=float(action.text.strip() == answer(self._index)))
        return Seen(text=f"<result>{wait_and_evaluate(match[1], self.latency)}</result>", reward=0.0)

    @property
    def state(self) -> State:
        """Return the state, which the suite requires."""
        return self._state


class Sessions:
    """Clients of one server."""

    def __init__(self, setting: Setting) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, __file__, str(port), str(setting.envs), str(setting.latency)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.processes = [self._server.pid]
        self._loop = asyncio.new_event_loop()
        self._clients = [GenericEnvClient(f"ws://127.0.0.1:{port}") for _ in range(setting.envs)]
        self._loop.run_until_complete(self._connect(port))

    async def _connect(self, port: int) -> None:
        until = time.monotonic() + SECONDS_TO_START
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                if time.monotonic() > until or self._server.poll() is not None:
                    raise
                await asyncio.sleep(0.1)
        for client in self._clients:
            await client.connect()

    def begin(self) -> None:
        """Begin an episode in all sessions at once."""
        self._together(client.reset(seed=index) for index, client in enumerate(self._clients))

    def step(self, turn: list[str]) -> list[float]:
        """Take a turn in all sessions; return the rewards."""
        steps = (client.step({"text": text}) for client, text in zip(self._clients, turn, strict=True))
        return [result.reward or 0.0 for result in self._together(steps)]

    def _together(self, requests: Iterable[Awaitable[Any]]) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*requests)

        return self._loop.run_until_complete(all_of_them())

    def close(self) -> None:
        """Close the sessions. The server ends when its input closes."""
        self._together(client.disconnect() for client in self._clients)
        self._server.stdin.close()
        try:
            self._server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._loop.close()


def opened(setting: Setting) -> Lockstep:
    """Return clients with their server."""
    sessions = Sessions(setting)
    batch = Lockstep(setting, sessions.begin, sessions.step, sessions.close)
    batch.processes = sessions.processes
    return batch


def run_server(port: int, sessions: int, latency: float) -> None:
    """Serve until the input is closed."""
    import uvicorn

    Calculator.latency = latency
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    app = create_fastapi_app(Calculator, Say, Seen, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if len(sys.argv) > 1:
    run_server(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
else:
    serve(("openenv-core",), {"server": opened})
