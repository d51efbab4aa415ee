"""Build an image for the docker sandbox: `python -m palaestra.envs.sandboxes.docker NAME [--base IMAGE]`."""

import argparse
import sys
from contextlib import closing

from palaestra.envs.sandboxes.docker import images
from palaestra.envs.sandboxes.docker.connection import DockerConnection, library
from palaestra.errors import PalaestraError


def main() -> int:
    """Build an image, and return exit status 0 if that worked."""
    parser = argparse.ArgumentParser(prog=images.COMMAND, description="Build an image for the docker sandbox.")
    purposes = "; ".join(f"{name}: {purpose}" for name, purpose in images.PURPOSES.items())
    parser.add_argument("name", choices=sorted(images.PURPOSES), help=purposes)
    parser.add_argument("--base", help="the image to build on, with python3 and pip (default: python:3.12-slim)")
    parser.add_argument("--network", help="the network of the build, `host` where the engine has no other")
    parser.add_argument("--engine", help="the engine's address (default: DOCKER_HOST, or its usual socket)")
    options = parser.parse_args()
    try:
        connection = DockerConnection(options.engine)
        with closing(connection.patient_client(images.BUILD_SECONDS)) as client:
            tag = images.build(client, options.name, base=options.base, network=options.network)
    except (PalaestraError, library().errors.DockerException) as error:
        print(error, file=sys.stderr)
        for line in getattr(error, "build_log", ()):
            print(line.get("stream", "").rstrip(), file=sys.stderr)
        return 1
    print(tag, file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
