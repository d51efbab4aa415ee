"""Environments of palaestra behind an OpenEnv server (openenv-core 0.3), for its clients and the trainers with one.

    python -m palaestra.interop.openenv_server palaestra/TwoHop-v0 --port 8000

An action is `{"text": TURN}`, the agent's whole turn in the environment's format of calls. An observation has the new
messages and their text; the first one also the schemas of the tools. `reset(seed=N, task=INDEX)` chooses the problem.
The last step of a BROKEN episode has no reward, and its ending says so. Left out: tokens, which the protocol does not
carry; authentication, so that it listens on loopback unless told otherwise.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from palaestra.envs.arena.text_env import TextEnv
from palaestra.episode import Ending
from palaestra.interop.episodes import open_text_env
from palaestra.plain import from_pairs


class TurnAction(Action):
    """A turn of the agent."""

    text: str


class TurnObservation(Observation):
    """The messages that are new to the agent, and the outcome at the end."""

    text: str = ""
    """The new messages as one text."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The new messages in the OpenAI form."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """Schemas of the tools, when an episode begins."""
    ending: str = ""
    """Name of the ending; empty while the episode runs."""
    success: float | None = None
    """The part `success` of the reward; None while the episode runs, and for BROKEN."""


class PalaestraEnvironment(Environment):
    """One session, with an environment of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: TextEnv) -> None:
        super().__init__()
        self._env, self._state = env, State(episode_id="", step_count=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None, **_: Any
    ) -> TurnObservation:
        """Begin an episode of this task; by default the seed chooses it."""
        text, info = self._env.reset(seed=seed, options={} if task is None else {"task": task})
        self._state = State(episode_id=episode_id or self._env.problem.id, step_count=0)
        return TurnObservation(text=text, messages=list(info["messages"]), tools=json.loads(info["tools"]))

    def step(self, action: TurnAction, timeout_s: float | None = None, **_: Any) -> TurnObservation:
        """Take a turn."""
        self._state.step_count += 1
        text, reward, _terminated, _truncated, info = self._env.step(action.text)
        ending, is_broken = info["ending"], info["ending"] == Ending.BROKEN
        return TurnObservation(
            text=text,
            messages=list(info["messages"]),
            done=bool(ending),
            reward=None if is_broken else reward,
            ending=ending,
            success=info["parts"].get("success") if ending and not is_broken else None,
        )

    @property
    def state(self) -> State:
        """The id of the episode, and the number of its turns."""
        return self._state

    def close(self) -> None:
        """Release the tools."""
        self._env.close()


def app(env_id: str, sessions: int = 64, **options: Any) -> Any:
    """Return the server's application. `options` are those of the environment, its split among them."""
    open_text_env(env_id, **options).close()  # What cannot be opened is refused here, not in the first session.
    factory = lambda: PalaestraEnvironment(open_text_env(env_id, **options))  # noqa: E731
    return create_fastapi_app(factory, TurnAction, TurnObservation, max_concurrent_envs=sessions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve an environment until the process is ended."""
    import uvicorn

    parser = argparse.ArgumentParser(
        prog="palaestra.interop.openenv_server", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("env_id")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--env-options", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    served = app(options.env_id, options.sessions, **from_pairs(options.env_options, "env_options"))
    uvicorn.run(served, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
