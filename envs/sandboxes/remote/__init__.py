"""Sandboxes on another machine: `RemoteSandbox` asks `palaestra serve sandbox`, `FusionSandbox` asks SandboxFusion.

    client ── connection ──── HTTP ──── server ── hosting ── any other backend

What goes over HTTP are the frames that a runner reads: `framed` writes and reads them at this end, `messages` at the
other. `connection` asks and asks again, `hosting` keeps the sessions. httpx is imported in `palaestra.endpoint.http`,
starlette and uvicorn in `server`, all of them when first needed.
"""

from palaestra.envs.sandboxes.remote.client import RemoteSandbox
from palaestra.envs.sandboxes.remote.fusion import FusionSandbox

__all__ = ["FusionSandbox", "RemoteSandbox"]
