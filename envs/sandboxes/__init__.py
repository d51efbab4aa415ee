"""Sandboxes run programs that an agent wrote. `open_sandbox` opens one; every backend behaves the same."""

from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.opening import BACKENDS, open_sandbox
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.sandbox import Sandbox, Session

__all__ = ["BACKENDS", "Capabilities", "Limits", "Result", "Sandbox", "Session", "open_sandbox"]
