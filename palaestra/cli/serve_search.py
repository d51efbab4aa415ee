"""`palaestra serve search PATH`: let other machines and trainers search an index, in Search-R1's wire format.

Left out: the client (`palaestra.envs.search.retrieve`), and making an index (`palaestra index build`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from palaestra.cli.shared_options import ListenOptions
from palaestra.envs.sandboxes.remote.server import find_token
from palaestra.envs.search.opening import INDEXES
from palaestra.envs.search.retrieve import TOKEN_ENV
from palaestra.envs.search.server import serve


@dataclass(frozen=True, kw_only=True)
class ServeSearchOptions(ListenOptions):
    """Serve an index over HTTP: POST /retrieve as Search-R1's retriever does, for `search=http://...` elsewhere."""

    path: Annotated[Path, tyro.conf.Positional]
    """The folder of an index that `palaestra index build` made."""
    engine: Literal["embedded", "dense", "hybrid"] = "embedded"
    """Search by words, by meaning, or by both."""
    token_env: str = TOKEN_ENV


def run(arguments: Sequence[str]) -> int:
    """Answer requests until interrupted."""
    options = tyro.cli(ServeSearchOptions, args=list(arguments), prog="palaestra serve search")
    token = find_token(options.token_env, options.host, TOKEN_ENV)
    index = INDEXES.remembered({"backend": options.engine, "path": str(options.path)})
    index.check()
    try:
        serve(index, options.host, options.port, token, lambda url: print(f"{url}\nCtrl-C ends it", flush=True))
    except KeyboardInterrupt:
        print("ended")
    return 0
