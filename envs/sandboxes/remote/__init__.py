"""Sandboxes on another machine: `RemoteSandbox` uses `palaestra serve sandbox`, `FusionSandbox` uses SandboxFusion.

    client ── connection ──── HTTP ──── server ── hosting ── any other backend

HTTP transports the frames of a runner. The client writes and reads them in `framed`, the server in `messages`.
`connection` sends requests and repeats them after failures; `hosting` keeps the sessions. Three libraries are imported
when they are first needed: httpx (`palaestra.endpoint.http`), starlette (`server`) and uvicorn (`listening`).
"""

from palaestra.envs.sandboxes.remote.client import RemoteSandbox
from palaestra.envs.sandboxes.remote.fusion import FusionSandbox

__all__ = ["FusionSandbox", "RemoteSandbox"]
