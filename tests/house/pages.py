"""Pages as programs: the fenced blocks of a Markdown page, and a reader who does what they say, from top to bottom.

- A block after "Save this as `NAME`" becomes that file; its language may be anything.
- `sh` and `python` blocks are run, in order, in one folder, and must succeed. `<!-- not run: REASON -->` on the line
  before a block excuses it.
- A `text` block is what the block before it printed; `...` stands for anything.
- Diagrams and lists of commands are indented, not fenced.

Left out: blocks that call `make`. They are for a clone, and `tests/prove/test_newcomer.py` runs them there.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"[Ss]ave (?:this|these|it)(?: \w+)* as `([^`]+)`")
_EXCUSE = re.compile(r"<!-- not run: (.*?) -->")
_TRAINING = re.compile(r"palaestra train \S+ .*--run runs/first\b.*")
SECONDS = 900


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    name: str
    """The file it becomes, or ""."""
    excuse: str | None
    """Why it is not run, where it is not."""

    @property
    def runs(self) -> bool:
        return not self.name and self.excuse is None and self.language in ("sh", "python")

    @property
    def for_a_clone(self) -> bool:
        return self.language == "sh" and re.search(r"^make ", self.text, re.MULTILINE) is not None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page's text."""
    found, end = [], 0
    for match in _FENCE.finditer(page):
        before = " ".join(page[end : match.start()].strip().rpartition("\n\n")[2].split())
        save, excuse = _SAVE.search(before), _EXCUSE.search(before)
        line = page.count("\n", 0, match.start()) + 1
        name = save[1] if save else ""
        found.append(Block(match[1], match[2], line, name, excuse[1].strip() if excuse else None))
        end = match.end()
    return found


class Reader:
    """Follows a page in a folder of its own. The run that pages share, `runs/first`, is trained once for them all."""

    def __init__(self, folder: Path, runs: Path) -> None:
        self.folder = folder
        self.runs = runs
        (folder / "runs").symlink_to(runs, target_is_directory=True)

    def follow(self, page: Path) -> None:
        printed = ""
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}, line {block.line}"
            if block.name:
                (self.folder / block.name).write_text(block.text, encoding="utf-8")
            elif block.language == "text":
                assert same(block.text, printed), f"{where}: expected\n{block.text}\nfound\n{printed}"
            elif block.runs and not block.for_a_clone and not self._trained(block):
                printed = self._run(block, where)

    def _trained(self, block: Block) -> bool:
        return bool(_TRAINING.fullmatch(block.text.strip())) and (self.runs / "first" / "summary.json").exists()

    def _run(self, block: Block, where: str) -> str:
        shell = ["bash", "-euo", "pipefail", "-c", block.text]
        command = shell if block.language == "sh" else [sys.executable, "-W", "error", "-c", block.text]
        status, printed = run(command, self.folder, environment(self.folder))
        assert status == 0, f"{where}: exit status {status}\n{block.text}\n{printed}"
        return printed


def environment(home: Path) -> dict[str, str]:
    """Little: the commands of this Python, a home of its own, no hub."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": path,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def run(command: list[str], folder: Path, variables: dict[str, str], seconds: float = SECONDS) -> tuple[int, str]:
    """Exit status and everything printed; what it started dies with it."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed.decode("utf-8", "replace")


def same(expected: str, printed: str) -> bool:
    """Whether the expected lines stand in what was printed, `...` for anything; blanks at the ends do not count."""
    wanted = "\n".join(line.rstrip() for line in expected.strip().splitlines())
    found = "\n".join(line.rstrip() for line in printed.splitlines())
    return re.search(re.escape(wanted).replace(r"\.\.\.", ".*?"), found, re.DOTALL) is not None
