"""Make a virtual environment for every suite that a benchmark measures beside us, or a test plays with: .peers/NAME

Each gets its own, because their requirements contradict each other and ours. The versions of the suites are pinned
here, what they need is pip's choice. One that cannot be installed leaves its reason in .peers/NAME.reason
and is no failure: the benchmark says that it was not measured, and why. Quick when all is up to date.

Those of SHARED also see all that .venv holds, palaestra and torch among it, where they bring no version of their own.

Standard library only.
"""

import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".peers"
PEERS = {
    "gem": ("gem-llm==0.1.0",),
    "skyrl": ("skyrl-gym==0.4.0",),
    "gymnasium": ("gymnasium==1.4.0",),
    "textarena": ("textarena==0.7.4",),
    "openenv": ("openenv-core==0.3.0",),
    "inspect": ("inspect-ai==0.3.285", "openai"),
    "verifiers": ("verifiers==0.1.14",),
    "smolagents": ("smolagents==1.26.0", "numpy", "sympy"),
    "trl": ("trl==1.16.0", "transformers==5.23.0", "jmespath"),  # the last for its tool loop
    "deepspeed": ("deepspeed==0.19.8",),
    "interop": (
        "trl==1.16.0",
        "transformers==5.23.0",
        "jmespath",
        "inspect-ai==0.3.285",
        "openai==3.57.0",
        "openai-agents==0.24.0",
        "smolagents[openai]==1.26.0",
        "langgraph==1.2.24",
        "langchain-openai==1.7.4",  # langgraph's model behind an address
        "pydantic-ai-slim[openai]==2.68.0",
        "openenv-core==0.3.0",
        "gem-llm==0.1.0",
        "skyrl-gym==0.4.0",
        "textarena==0.7.4",
    ),
    "interop-verifiers": ("verifiers==0.1.14",),  # it wants older datasets than trl
    "interop-verl": ("verl==0.9.1", "cachetools==8.0.2", "fastapi==0.165.0"),  # and this an older transformers
}
"""By the name of its driver in benchmarks/peers, or of a test target of the Makefile, what pip is told for it."""
SHARED = ("trl", "deepspeed", "interop", "interop-verifiers", "interop-verl")
INSTALL_SECONDS = 900


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    names = sys.argv[1:] or list(PEERS)
    unknown = sorted(set(names) - set(PEERS))
    if unknown:
        sys.exit(f"peers: no peer is named {', '.join(unknown)}; expected some of {', '.join(PEERS)}")
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(make, names))
    for name, outcome in zip(names, outcomes, strict=True):
        print(f"peers: {name}: {outcome}", flush=True)


def make(name):
    """One peer's environment; what came of it, in words."""
    place, requirements = FOLDER / name, PEERS[name]
    stamp, reason = place / "palaestra-peer", FOLDER / f"{name}.reason"
    if stamp.is_file() and stamp.read_text() == mark(requirements):
        return "is up to date"
    print(f"peers: {name}: installing {' '.join(requirements)}", flush=True)
    reason.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    python = place / "bin" / "python"
    install = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--prefer-binary")
    said = run(sys.executable, "-m", "venv", place)
    if not said and name in SHARED:
        share_packages(place)
    said = said or run(*install, *requirements)
    if said:
        shutil.rmtree(place, ignore_errors=True)
        reason.write_text(said + "\n")
        return f"not installed: {said}"
    stamp.write_text(mark(requirements))
    return "installed"


def share_packages(place):
    """Let an environment see the packages of the Python that runs this, after its own."""
    here, there = (Path(sysconfig.get_path("purelib", vars={"base": base})) for base in (sys.prefix, str(place)))
    (there / "shared.pth").write_text(f"import site; site.addsitedir({str(here)!r})\n")


def mark(requirements):
    """Changes with what is to be installed, and with the Python that runs it."""
    return "\n".join((*requirements, sys.version, str(FOLDER)))


def run(*command):
    """Nothing where it went well, else the last line that says why it did not."""
    words = [str(part) for part in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"gave up after {INSTALL_SECONDS} s: {' '.join(words)}"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]


if __name__ == "__main__":
    main()
