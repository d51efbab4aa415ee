"""The images that programs run in: their names, checks and builds.

An image contains the runner of one version of palaestra, and a label with that version. Palaestra's own images are
found by a tag with the version; if you build an image on one of them, its label is checked. The Dockerfiles are in
`sandbox_images/`, each with a page that describes it.
"""

import functools
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

from palaestra.envs.sandboxes.docker.connection import NAME, library
from palaestra.errors import SandboxUnavailable, UsageError

PURPOSES = {
    "runner": "Python and its standard library",
    "python": "Python with numpy and sympy",
    "judge": "Python, C++ (g++) and Node",
}
LABEL = "palaestra.runner"
BUILD_SECONDS = 1800
COMMAND = "python -m palaestra.envs.sandboxes.docker"

_RUNNER = Path(__file__).parents[1] / "runner"
_IN_CONTEXT = "envs/sandboxes/runner"  # the same path as in a clone, so that `docker build .` works there as well


@functools.cache
def runner_version() -> str:
    """Return a hash of all files of the runner."""
    state = hashlib.sha256()
    for path in _runner_files():
        state.update(path.relative_to(_RUNNER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:12]


def tag(name: str) -> str:
    """Return the full name of this version's image; the name of an image that is not palaestra's is unchanged."""
    return f"palaestra/{name}:{runner_version()}" if name in PURPOSES else name


def check(api: Any, name: str) -> None:
    """Raise SandboxUnavailable unless the image exists and contains this version of the runner."""
    try:
        image = api.inspect_image(tag(name))
    except library().errors.ImageNotFound:
        purpose = name if name in PURPOSES else "python"
        remedies = [f"{COMMAND} {purpose}    builds {tag(purpose)}"]
        if name not in PURPOSES:
            remedies = [f"docker pull {name}", *remedies]
        raise SandboxUnavailable(NAME, f"the engine has no image {tag(name)!r}", remedies) from None
    label = ((image.get("Config") or {}).get("Labels") or {}).get(LABEL)
    if label != runner_version():
        text = f"the runner {label}, and this palaestra has {runner_version()}" if label else "no runner of palaestra"
        remedy = f"{COMMAND} --base {name} runner    builds {tag('runner')} on top of it"
        raise SandboxUnavailable(NAME, f"image {name!r} holds {text}", [remedy])


def build(client: Any, name: str, *, base: str | None = None, network: str | None = None) -> str:
    """Build one image, on `base` instead of the base in its Dockerfile, and return its tag."""
    if name not in PURPOSES:
        raise UsageError(f"no image is named {name!r}; known: {', '.join(PURPOSES)}")
    arguments = {"RUNNER": runner_version()} | ({"BASE": base} if base else {})
    client.images.build(
        fileobj=_context(name),
        custom_context=True,
        dockerfile="Dockerfile",
        buildargs=arguments,
        tag=tag(name),
        network_mode=network,
        rm=True,
        forcerm=True,
    )
    return tag(name)


def _context(name: str) -> io.BytesIO:
    """Return a tar with the Dockerfile and the runner."""
    import palaestra

    packed, dockerfile = io.BytesIO(), Path(palaestra.__file__).parent / "sandbox_images" / name / "Dockerfile"
    runner = [(path, f"{_IN_CONTEXT}/{path.relative_to(_RUNNER).as_posix()}") for path in _runner_files()]
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, name_in_tar in [(dockerfile, "Dockerfile"), *runner]:
            entry = tarfile.TarInfo(name_in_tar)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    packed.seek(0)
    return packed


def _runner_files() -> list[Path]:
    return sorted(_RUNNER.rglob("*.py"))
