"""`palaestra view RUN`: a run, or files of episodes, as one page for a browser; live with --serve."""

import re
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.output import Reported
from palaestra.errors import UsageError

_LARGE = 150_000_000
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class Options(Reported):
    """Look at a run: curves, groups, episodes turn by turn, tokens. One HTML file that needs no network."""

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """A run's folder, or one or more episode files (.jsonl)."""
    out: Path | None = None
    """The page; RUN/view.html by default, view.html in this folder for episode files."""
    open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show it in the browser of this machine."""
    serve: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write no file; serve the page on this machine alone, and follow a run that is still going."""
    port: int = 0
    """For --serve; 0 takes a free one."""
    steps: str = ""
    """Only the episodes of these steps, such as 1,5,10-20; all by default."""

    def __post_init__(self) -> None:
        if self.serve and self.out is not None:
            raise UsageError("--serve writes no file, so --out has no meaning with it; give one of the two")
        if self.port and not self.serve:
            raise UsageError("--port is where --serve listens; add --serve")
        if not 0 <= self.port < 65_536:
            raise UsageError(f"port is {self.port}; it must be from 0 to 65535")
        chosen_steps(self.steps)


def chosen_steps(text: str) -> frozenset[int] | None:
    """`1,5,10-20` as numbers; None for all."""
    if not text.strip():
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        steps = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not steps:
            raise UsageError(f"steps has {part.strip()!r}; expected numbers and ranges, such as 1,5,10-20")
        if len(steps) > _MOST_STEPS + 1:
            raise UsageError(f"steps has {part.strip()!r}, more than {_MOST_STEPS:,} steps")
        chosen.update(steps)
    return frozenset(chosen)


def run(arguments: Sequence[str]) -> int:
    """Write the page, or serve it until interrupted."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra view")
    if not options.paths:
        raise UsageError("name a run's folder, or one or more episode files: palaestra view RUN")
    steps, console = chosen_steps(options.steps), Console()
    if options.serve:
        return _serve(options, steps, console)
    from palaestra.trainers.viewer.collect import Collection
    from palaestra.trainers.viewer.page import write

    collection = Collection(options.paths, steps)
    written = write(options.out or (collection.run or Path()) / "view.html", collection)
    show_line(console, f"{written.episodes:,} episodes, {written.bytes / 1e6:,.1f} MB: {written.path}")
    if written.defects:
        lines = "line that" if written.defects == 1 else "lines that"
        console.print(f"without {written.defects} {lines} cannot be read; the page names them", highlight=False)
    if written.bytes > _LARGE:
        console.print("large for a browser; choose some with --steps, or use --serve", highlight=False)
    if options.open:
        webbrowser.open(written.path.resolve().as_uri())
    return 0


def _serve(options: Options, steps: frozenset[int] | None, console: Console) -> int:
    from palaestra.trainers.viewer.server import Viewer

    viewer = Viewer(options.paths, steps, options.port)
    try:
        show_line(console, f"{viewer.url}\nCtrl-C ends it")
        if options.open:
            webbrowser.open(viewer.url)
        viewer.run()
    except KeyboardInterrupt:
        console.print("ended")
    return 0
