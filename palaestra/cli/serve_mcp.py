"""`palaestra serve mcp ID`: offer an environment over MCP, so that any MCP client can play it.

Left out: how a client plays an episode (`palaestra.envs.arena.served_mcp`).
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from palaestra.cli.ids import resolve
from palaestra.cli.shared_options import EnvironmentOptions, ListenOptions
from palaestra.registry import check_options


@dataclass(frozen=True, kw_only=True)
class ServeMCPOptions(EnvironmentOptions, ListenOptions):
    """Offer an environment to MCP clients: its tools, and `reset` and `submit`, with the reward at the end.

    By default it uses standard input and output, which is how clients start their servers.
    """

    env_id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV-ID")]
    """Id of the environment; for a game, --env-options seat=NAME chooses the seat."""
    http: bool = False
    """Serve over HTTP instead, at http://HOST:PORT/mcp."""
    port: int = 8766
    """Port; 0 chooses a free one."""


def run(arguments: Sequence[str]) -> int:
    """Answer requests until the input ends, or until interrupted."""
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
