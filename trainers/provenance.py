"""What figures were made with: versions, weights, and processor time."""

import platform
import resource
from hashlib import blake2b, file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("palaestra", "torch", "transformers", "tokenizers", "gymnasium", "numpy")


def cpu_seconds() -> float:
    """User and system time of this process and the children it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def versions() -> dict[str, str]:
    """Of the language, the machine and the libraries that a figure depends on."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


def digest_of(file: Path) -> str:
    """Of a file's content."""
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=16)).hexdigest()


def weights_of(folder: Path) -> str:
    """A digest of the weights in a model's folder; "" where there are none."""
    found = blake2b(digest_size=12)
    files = sorted(path for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
    for path in files:
        found.update(f"{path.name} {digest_of(path)} ".encode())
    return found.hexdigest() if files else ""
