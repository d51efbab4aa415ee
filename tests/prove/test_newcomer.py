"""A newcomer's first hour: a fresh clone, nothing of this environment, and the README word for word.

pip may use the network, as it is set up here; nothing else is handed over. Left out: `make test` itself, of which only
the collection is run, because these are its tests.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, blocks, run

pytestmark = pytest.mark.prove

_NETWORK = ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir", "requests_ca_bundle")
_NETWORK_FAILED = re.compile(
    r"(Read|Connect)Timeout|Connection(Error| reset)|IncompleteRead|ProtocolError|HTTP error 5\d\d"
)
_MINUTES = 15
"""A deadline, not a measure: most of it is what pip fetches."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty home, where pip reaches a package index."""
    folder = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder / "probe"), "tyro"]
    try:
        status, printed = run(command, folder, bare(folder), seconds=90)
    except subprocess.TimeoutExpired:
        pytest.skip("pip reaches no package index: no answer in 90 s")
    if status:
        pytest.skip(f"pip reaches no package index: {printed.strip()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit, as `git clone` gives it."""
    if not (ROOT / ".git").exists():
        pytest.skip("these files are no git repository, so they cannot be cloned")
    folder = tmp_path_factory.mktemp("newcomer") / "palaestra"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, timeout=120)
    return folder


def bare(home: Path) -> dict[str, str]:
    """The path to programs, without our own `.venv`; a home; and how this machine reaches its network."""
    ours = str(Path(sys.executable).parent)
    path = os.pathsep.join(folder for folder in os.environ["PATH"].split(os.pathsep) if folder != ours)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.lower() in _NETWORK}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.exists():
        kept.setdefault("PIP_CONFIG_FILE", str(settings))
    return {**kept, "PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}


def script(page: str) -> str:
    """A page as one program of the shell: what is to be saved is saved, and what is to be run is run, in order."""
    lines = ["set -euo pipefail"]
    for block in blocks(page):
        if block.name:
            lines.append(f"cat > {block.name} <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK")
        elif block.runs:
            lines.append(f"echo '--- line {block.line}'")
            text = block.text.rstrip("\n")
            lines.append(text if block.language == "sh" else f"python - <<'END_OF_BLOCK'\n{text}\nEND_OF_BLOCK")
    return "\n".join([*lines, "echo '--- the end'", ""])


def installed(command: list[str], clone: Path, home: Path) -> str:
    """Return what a command printed that installs packages; it runs once more if the network failed."""
    status, printed = run(command, clone, bare(home), seconds=60 * _MINUTES)
    if status and _NETWORK_FAILED.search(printed):
        status, printed = run(command, clone, bare(home), seconds=60 * _MINUTES)
    assert status == 0, printed
    return printed


def test_make_demo_is_all_that_a_fresh_machine_needs(clone: Path, home: Path) -> None:
    assert "after GRPO" in installed(["make", "demo"], clone, home)
    assert len(list(clone.glob("runs/*/summary.json"))) == 1


def test_the_readme_runs_in_a_clone_from_top_to_bottom(clone: Path, home: Path) -> None:
    program = script((clone / "README.md").read_text("utf-8"))
    status, printed = run(["bash", "-c", program], clone, bare(home), seconds=60 * _MINUTES)
    assert status == 0, printed
    assert printed.endswith("--- the end\n")
    assert (clone / "runs" / "first" / "view.html").exists()


def test_make_test_finds_its_tests_in_a_clone(clone: Path, home: Path) -> None:
    installed(["make", "with-test"], clone, home)
    command = [".venv/bin/python", "-m", "pytest", "-m", "not prove and not chromium", "--collect-only", "-q"]
    status, printed = run(command, clone, bare(home))
    assert status == 0, printed
