"""The images that programs run in: how they are named, checked and built.

An image holds the runner of one version of palaestra, and its label says which. The one that fits is found by its tag;
an image of your own, built on one of these, is checked by the label. What is not here: Dockerfiles, they are in
`sandbox_images/` with a page each.
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
_IN_CONTEXT = "envs/sandboxes/runner"  # where a clone has it, so that `docker build .` there works as well


@functools.cache
def runner_version() -> str:
    """Changes with every file of the runner."""
    state = hashlib.sha256()
    for path in _runner_files():
        state.update(path.relative_to(_RUNNER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:12]


def tag(name: str) -> str:
    """The image of this version of palaestra; a name that is not ours stands for itself."""
    return f"palaestra/{name}:{runner_version()}" if name in PURPOSES else name


def check(api: Any, name: str) -> None:
    """Raise unless the image is there and holds the runner that we speak with."""
    try:
        image = api.inspect_image(tag(name))
    except library().errors.ImageNotFound:
        wanted = name if name in PURPOSES else "python"
        remedies = [f"{COMMAND} {wanted}    builds {tag(wanted)}"]
        if name not in PURPOSES:
            remedies = [f"docker pull {name}", *remedies]
        raise SandboxUnavailable(NAME, f"the engine has no image {tag(name)!r}", remedies) from None
    found = ((image.get("Config") or {}).get("Labels") or {}).get(LABEL)
    if found != runner_version():
        held = f"the runner {found}, and this palaestra has {runner_version()}" if found else "no runner of palaestra"
        remedy = f"{COMMAND} --base {name} runner    builds {tag('runner')} on top of it"
        raise SandboxUnavailable(NAME, f"image {name!r} holds {held}", [remedy])


def build(client: Any, name: str, *, base: str | None = None, network: str | None = None) -> str:
    """Build one image, on `base` instead of what its Dockerfile names; its tag."""
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
    """The Dockerfile and the runner, as a tar."""
    import palaestra

    packed, dockerfile = io.BytesIO(), Path(palaestra.__file__).parent / "sandbox_images" / name / "Dockerfile"
    runner = [(path, f"{_IN_CONTEXT}/{path.relative_to(_RUNNER).as_posix()}") for path in _runner_files()]
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, place in [(dockerfile, "Dockerfile"), *runner]:
            entry = tarfile.TarInfo(place)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    packed.seek(0)
    return packed


def _runner_files() -> list[Path]:
    return sorted(_RUNNER.rglob("*.py"))
