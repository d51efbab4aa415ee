"""Find which libraries are installed, whether palaestra supports their versions, and what each extra enables.

The supported versions come from palaestra's package metadata, which pip reads too. Left out: importing the libraries,
which `machine.torch_findings` tries.
"""

import sys
from collections.abc import Iterator
from importlib import metadata, util
from platform import python_version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import palaestra
from palaestra.cli.finding import DoctorFinding

PURPOSES = {
    "train": "play and train models in this process",
    "test": "run the tests of palaestra itself",
    "lora": "train adapters in place of whole models",
    "gguf": "convert GGUF files, and fetch the model smollm2",
    "quantized": "keep the optimizer's moments in 8 bits",
    "plot": "draw the curves of a run as images",
    "endpoint": "play against a model behind an HTTP API",
    "data": "read tasks from parquet files",
    "games": "show games of several seats to PettingZoo's tools",
    "code": "grade mathematics, and play HumanEval-v0 and Reasoning-v0",
    "docker": "run agents' programs in containers",
    "serve": "offer a sandbox, an index or tools to other machines, and a model to an agent loop of your own",
    "openai": "hand an agent loop of your own a ready client",
    "search": "build an index of texts and search it",
    "dense": "search by meaning, with a local embedding model",
    "browser": "browse without JavaScript",
    "chromium": "browse with a real browser",
    "miniwob": "play MiniWoB-v0",
    "files": "read PDF, Word, PowerPoint and Excel files",
    "mcp": "use tools of MCP servers, and serve an environment's",
    "wandb": "track runs with Weights & Biases",
    "trackio": "track runs with trackio",
    "tensorboard": "track runs with TensorBoard",
    "ray": "play on other machines",
    "deepspeed": "divide learning among ranks with DeepSpeed",
    "vllm": "give weights to vLLM servers from GPU to GPU",
    "docs": "build the documentation as a site",
    "dev": "work on palaestra itself",
}
"""Maps an extra to what it enables."""
_MODULES = {"faiss-cpu": "faiss", "python-docx": "docx", "python-pptx": "pptx", "pytest-xdist": "xdist"}
"""Modules with another name than their library."""
BASIC_EXTRA = "train"
"""The extra that training needs."""


def library_findings() -> Iterator[DoctorFinding]:
    """Yield findings on Python, palaestra and each library, and after an extra's libraries on what it enables."""
    python = f"{python_version()} ({sys.executable})"
    try:
        about = metadata.metadata("palaestra")
    except metadata.PackageNotFoundError:
        yield DoctorFinding("python", python)
        text = f"{palaestra.__version__}, run from its sources and not installed: supported versions are not known"
        yield DoctorFinding("palaestra", text, "broken", "pip install -e '.[train]' in its folder", vital=True)
        return
    supported = SpecifierSet(about["Requires-Python"] or "")
    fits = supported.contains(python_version(), prereleases=True)
    yield DoctorFinding("python", f"{python} (needs {supported})", "ok" if fits else "broken", vital=True)
    if about["Version"] == palaestra.__version__:
        yield DoctorFinding("palaestra", f"{palaestra.__version__} ({palaestra.__path__[0]})")
    else:
        text = f"{palaestra.__version__}, but was installed as {about['Version']}: its requirements may be out of date"
        yield DoctorFinding("palaestra", text, "warning", "pip install again in its folder")
    requirements = [Requirement(line) for line in metadata.requires("palaestra") or ()]
    printed: set[str] = set()
    for extra in ("", *(about.get_all("Provides-Extra") or ())):
        # An extra may contain other extras of palaestra, which have their own turn in this loop.
        lines = [_library(need, extra) for need in requirements if need.name != "palaestra" and _brings(extra, need)]
        if extra != "dev":  # Its dozen lines would hide the others.
            yield from (line for line in lines if line.about not in printed)
            printed |= {line.about for line in lines}
        if extra:
            absent = ", ".join(line.about for line in lines if line.state != "ok")
            text = PURPOSES.get(extra, "") + (f"; not ready: {absent}" if absent else "")
            remedy = f"pip install 'palaestra[{extra}]'" if absent else ""
            yield DoctorFinding(
                f"extra {extra}", text, "missing" if absent else "ok", remedy, vital=extra == BASIC_EXTRA
            )


def _brings(extra: str, need: Requirement) -> bool:
    """Return whether an extra needs this library. The extra "" stands for the libraries that are always installed."""
    needed, always = (need.marker is None or need.marker.evaluate({"extra": name}) for name in (extra, ""))
    return needed and not (extra and always)


def _library(need: Requirement, extra: str) -> DoctorFinding:
    """Return the finding for one library: whether it is installed, can be imported and has a supported version."""
    supported = ",".join(sorted(map(str, need.specifier), reverse=True))
    needs = f"(needs {supported})" if supported else "(any version will do)"
    install = f"pip install '{need.name}{supported}'"
    vital = extra in ("", BASIC_EXTRA)
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        remedy = f"pip install 'palaestra[{extra}]'" if extra else install
        return DoctorFinding(need.name, f"not installed {needs}", "missing", remedy, vital)
    if not findable(need.name):
        text = f"{version} is listed as installed, but cannot be imported"
        return DoctorFinding(need.name, text, "broken", install.replace("install", "install --force-reinstall"), vital)
    if not need.specifier.contains(version, prereleases=True):
        return DoctorFinding(need.name, f"{version} {needs}", "broken", install, vital)
    return DoctorFinding(need.name, f"{version} {needs}")


def findable(library: str) -> bool:
    """Return whether Python finds the module of a library. The module is not imported."""
    module = _MODULES.get(library, library.replace("-", "_").lower())
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):  # Import hooks may raise any of these.
        return False
