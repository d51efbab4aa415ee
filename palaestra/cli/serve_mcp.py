"""`palaestra serve mcp ID`: an environment over MCP, for any client to play.

Left out: how an episode is played there (`palaestra.envs.arena.served_mcp`).
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from palaestra.cli.ids import resolve
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.registry import check_options


@dataclass(frozen=True)
class ServeMCPOptions:
    """Offer an environment to MCP clients: its tools, and `reset` and `submit`, with the reward at the end.

    By default it speaks on standard input and output, as clients start their servers.
    """

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV-ID")]
    """Environment, by id; of a game one seat, with --env-options seat=NAME."""
    split: Literal["train", "eval"] | None = None
    """Which tasks; by default what the environment itself takes, which is train for most."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes."""
    http: bool = False
    """Listen at an address instead: http://HOST:PORT/mcp."""
    host: str = "127.0.0.1"
    """Where to listen; 0.0.0.0 for every network of this machine, which needs a token."""
    port: int = 8766
    """0 takes a free one."""
    token_env: str = ""
    """Environment variable that holds a token for clients to send. Without one, this machine alone is answered."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise UsageError(f"port is {self.port}; it must be from 0 to 65535")

    @property
    def environment(self) -> dict[str, Any]:
        """What was asked for of the environment."""
        chosen = {} if self.split is None else {"split": self.split}
        return {**chosen, **from_pairs(self.env_options, "env_options")}


def run(arguments: Sequence[str]) -> int:
    """Answer until the input ends, or until interrupted."""
    options = tyro.cli(ServeMCPOptions, args=list(arguments), prog="palaestra serve mcp")
    env_id = resolve(options.env_id)
    from palaestra.envs.arena.served_mcp import over_http, over_pipes, served
    from palaestra.envs.sandboxes.remote.server import find_token

    check_options(env_id, options.environment)
    with served(env_id, options.environment) as server:
        try:
            if options.http:
                token = find_token(options.token_env, options.host)
                over_http(server, options.host, options.port, token, _say)
            else:
                asyncio.run(over_pipes(server))
        except KeyboardInterrupt:
            print("ended", file=sys.stderr)
    return 0


def _say(url: str) -> None:
    print(f"{url}\nCtrl-C ends it", flush=True)
