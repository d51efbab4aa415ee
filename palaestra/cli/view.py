"""`palaestra view RUN`: show a run, several runs or files of episodes as one HTML page; --serve follows a run live."""

import re
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import note, show_line
from palaestra.cli.output import Reported, reporting
from palaestra.cli.shared_options import check_port
from palaestra.errors import UsageError

_LARGE = 150_000_000
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class ViewOptions(Reported):
    """Show a run: curves, groups, episodes turn by turn, tokens; or compare several runs.

    One HTML file that needs no network.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """A run's folder, the folders of several runs to compare, or one or more episode files (.jsonl)."""
    out: Path | None = None
    """File for the page; by default RUN/view.html, view.html in this folder for episode files, compare.html for several
    runs."""
    open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Open the page in the browser of this machine."""
    serve: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write no file; serve the page on this machine only, and follow a run that is still training."""
    port: int = 0
    """Port for --serve; 0 chooses a free one."""
    steps: str = ""
    """Only the episodes of these steps, such as 1,5,10-20; all by default."""

    def __post_init__(self) -> None:
        if self.serve and self.out is not None:
            raise UsageError("--serve writes no file, so --out has no meaning with it; give one of the two")
        if self.port and not self.serve:
            raise UsageError("--port is where --serve listens; add --serve")
        check_port(self.port)
        chosen_numbers(self.steps)
        if self.serve and self.json is not None:
            raise UsageError("--serve runs until you stop it and writes no results; remove --json")
        if self.serve and self.compares:
            raise UsageError("--serve follows one run; leave it out to compare several")

    @property
    def compares(self) -> bool:
        """True if several runs are to be shown."""
        return len(self.paths) > 1 and all(path.is_dir() for path in self.paths)


def chosen_numbers(text: str, what: str = "steps") -> frozenset[int] | None:
    """Return the numbers in a text such as `1,5,10-20`; None for an empty text, which means all."""
    if not text.strip():
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        steps = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not steps:
            raise UsageError(f"{what} has {part.strip()!r}; expected numbers and ranges, such as 1,5,10-20")
        if len(steps) > _MOST_STEPS + 1:
            raise UsageError(f"{what} has {part.strip()!r}, more than {_MOST_STEPS:,}")
        chosen.update(steps)
    return frozenset(chosen)


def run(arguments: Sequence[str]) -> int:
    """Write the page; with --serve, serve it until interrupted."""
    options = tyro.cli(ViewOptions, args=list(arguments), prog="palaestra view")
    if not options.paths:
        raise UsageError("name a run's folder, or one or more episode files: palaestra view RUN")
    steps = chosen_numbers(options.steps)
    if options.serve:
        return _serve(options, steps, Console())
    with reporting(options.json) as figures:
        figures |= _write(options, steps)
    return 0


def _write(options: ViewOptions, steps: frozenset[int] | None) -> dict[str, Any]:
    from palaestra.trainers.view.pages.compare_runs import RunComparison
    from palaestra.trainers.view.pages.load_episodes import Collection
    from palaestra.trainers.view.pages.page import write

    if options.compares:
        written = write(options.out or Path("compare.html"), RunComparison(options.paths))
        what = f"{len(options.paths)} runs"
    else:
        collection = Collection(options.paths, steps)
        written = write(options.out or (collection.run or Path()) / "view.html", collection)
        what = f"{written.episodes:,} episodes"
    show_line(Console(), f"{what}, {written.bytes / 1e6:,.1f} MB: {written.path}")
    if written.defects:
        lines = "line that" if written.defects == 1 else "lines that"
        note(f"without {written.defects} {lines} cannot be read; the page names them")
    if written.bytes > _LARGE:
        note("large for a browser; choose some with --steps, or use --serve")
    if options.open:
        webbrowser.open(written.path.resolve().as_uri())
    return asdict(written)


def _serve(options: ViewOptions, steps: frozenset[int] | None, console: Console) -> int:
    from palaestra.trainers.view.pages.viewer_server import ViewerServer

    viewer = ViewerServer(options.paths, steps, options.port)
    try:
        show_line(console, f"{viewer.url}\nCtrl-C ends it")
        if options.open:
            webbrowser.open(viewer.url)
        viewer.run()
    except KeyboardInterrupt:
        console.print("ended")
    return 0
