"""Programs in hardened containers of Docker or Podman: `open_sandbox("docker")`. See `sandbox` for the parts."""

from palaestra.envs.sandboxes.docker.sandbox import DockerSandbox

__all__ = ["DockerSandbox"]
