"""Sandboxes on another machine: `RemoteSandbox` asks `palaestra serve sandbox`, `FusionSandbox` asks SandboxFusion.

    client ── exchange ──── HTTP ──── server ── places ── any other backend
               wire                    wire

`wire` is what both ends agree on, `exchange` asks and asks again, `places` keeps the sessions. httpx is imported in
`exchange`, starlette and uvicorn in `server`, all of them when first needed.
"""

from palaestra.envs.sandboxes.remote.client import RemoteSandbox, RemoteSession
from palaestra.envs.sandboxes.remote.fusion import FusionSandbox

__all__ = ["FusionSandbox", "RemoteSandbox", "RemoteSession"]
