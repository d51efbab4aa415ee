"""Record which versions and which weights produced a result."""

import platform
from hashlib import blake2b, file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("palaestra", "torch", "transformers", "tokenizers", "gymnasium", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on, with system and processor type."""
    version_by_name = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for library in _LIBRARIES:
        try:
            version_by_name[library] = version(library)
        except PackageNotFoundError:
            version_by_name[library] = "not installed"
    return version_by_name


def digest_of(file: Path) -> str:
    """Return the hash of a file's content."""
    with file.open("rb") as content:
        return file_digest(content, lambda: blake2b(digest_size=16)).hexdigest()


def weights_of(folder: Path) -> str:
    """Return a digest of the weights in a model's folder; "" if there are none."""
    hasher = blake2b(digest_size=12)
    files = sorted(path for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
    for path in files:
        hasher.update(f"{path.name} {digest_of(path)} ".encode())
    return hasher.hexdigest() if files else ""
