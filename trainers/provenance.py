"""What figures were made with: versions, and processor time."""

import platform
import resource
from importlib.metadata import PackageNotFoundError, version

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
