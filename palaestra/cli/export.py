"""`palaestra export FILE... --to FORM --out FILE`: write recorded episodes in the form of another project."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.episodes import GameReader
from palaestra.cli.output import Reported, require_writable, run_reported
from palaestra.episode import Ending
from palaestra.interop.records_out import log_of, rows
from palaestra.record import Record


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Reported):
    """Write recorded episodes in the form of another project."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    to: Literal["messages", "trl", "verl", "sharegpt", "inspect"]
    """Form of the file: `messages` is OpenAI's fine-tuning; `trl` holds the tokens themselves, where episodes have
    some; `inspect` is one log."""
    out: Path
    """The new file: JSON lines; one JSON object for inspect."""


def run(arguments: Sequence[str]) -> int:
    """Write the file. Return 1 if a line is not a record."""
    return run_reported(ExportOptions, "export", arguments, _export)


def _export(options: ExportOptions, figures: dict[str, Any]) -> int:
    require_writable("--out", options.out)
    console, counts = Console(), {"episodes": 0, "broken": 0}
    reading = GameReader(options.files, console)

    def records() -> Iterator[Record]:
        for _, record in reading:
            counts["broken" if record.episode.ending is Ending.BROKEN else "episodes"] += 1
            yield record

    entries = [log_of(records())] if options.to == "inspect" else rows(options.to, records())
    lines = (json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    # A lone surrogate, which a task file may hold, has no UTF-8 form.
    options.out.write_bytes(b"".join(line.encode("utf-8", "surrogatepass") for line in lines))
    broken = "" if not counts["broken"] else (
        f"; {counts['broken']} BROKEN ones are errors in it" if options.to == "inspect" else
        f"; {counts['broken']} BROKEN ones are left out"
    )  # fmt: skip
    show_line(console, f"{options.out}: {counts['episodes']} episodes{broken}")
    figures |= {**counts, "to": options.to, "defects": reading.defects}
    return 1 if reading.defects else 0
