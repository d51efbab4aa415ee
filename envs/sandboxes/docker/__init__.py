"""Programs in hardened containers of Docker or Podman: `open_sandbox("docker")`. `sandbox` lists the modules."""

from palaestra.envs.sandboxes.docker.sandbox import DockerSandbox

__all__ = ["DockerSandbox"]
