"""Environments behind an OpenEnv server: `foreign/OpenEnv-v0` with `address=` that the user's command line gives.

Each environment is a session of its own, and the server must allow as many as episodes are played at once. An action
is the one text field of the server's actions. Left out: starting servers, and observations that are no text (they are
shown as JSON).
"""

import json
from typing import Annotated, Any

from palaestra.envs.foreign.text_game import TextGame, installed
from palaestra.errors import Broken, UsageError
from palaestra.options import SERVICE


class OpenEnv(TextGame):
    """A session of an OpenEnv server. The reward of a step is the server's; a last step without one is BROKEN."""

    def __init__(self, address: Annotated[str, SERVICE] = "", says: str = "", hears: str = "") -> None:
        """`says` is the field of an action that holds the turn, `hears` the field of an observation that is shown; by
        default the server's only text field, and all of an observation that has several."""
        with installed("openenv-core", "foreign/OpenEnv-v0"):
            from openenv.core.generic_client import GenericEnvClient
        if not address:
            raise UsageError("foreign/OpenEnv-v0 needs the option address, such as address=http://127.0.0.1:8000")
        self._client = GenericEnvClient(address).sync()
        self._says, self._hears = says or _text_field(address), hears

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the seed is sent to the server."""
        super().reset(seed=seed)
        result = self._asked(self._client.reset, **({} if seed is None else {"seed": seed}))
        return self._text(result.observation), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn."""
        result = self._asked(self._client.step, {self._says: action})
        if result.done and result.reward is None:
            raise Broken("the server ended the episode without a reward")
        success = result.observation.get("success")
        info = {} if success is None else {"success": float(success)}
        return self._text(result.observation), float(result.reward or 0.0), bool(result.done), False, info

    def close(self) -> None:
        """End the session."""
        self._client.close()

    def _asked(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Return the server's answer; raise Broken if it cannot be reached. What it refuses is a RuntimeError."""
        from websockets.exceptions import ConnectionClosed

        try:
            return call(*arguments, **options)
        except (OSError, TimeoutError, ConnectionClosed) as error:
            self._client.close()  # The next call opens a new session.
            raise Broken(f"the OpenEnv server gave no answer: {type(error).__name__}: {error}") from error

    def _text(self, observation: dict[str, Any]) -> str:
        fields = {self._hears: observation.get(self._hears)} if self._hears else observation
        texts = [value for value in fields.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else json.dumps(observation, ensure_ascii=False)


def _text_field(address: str) -> str:
    """Return the only field of the server's actions that must be given and is text."""
    import httpx

    try:
        action = httpx.get(f"{address.rstrip('/')}/schema".replace("ws://", "http://"), timeout=20).json()["action"]
        texts = [name for name in action.get("required", []) if action["properties"][name].get("type") == "string"]
    except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the OpenEnv server at {address} gave no schema of its actions: {error!r}") from error
    if len(texts) != 1:
        raise UsageError(f"an action there has the text fields {texts}; name the one of the agent's turn: says=NAME")
    return str(texts[0])
