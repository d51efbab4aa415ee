"""`palaestra import FILE... --from FORM --out FILE`: make episodes of other projects' dialogues and evaluations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.output import Reported, run_reported
from palaestra.errors import UsageError
from palaestra.interop.records_in import records_of
from palaestra.record import Record, write


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Reported):
    """Make episodes of the dialogues or evaluations of another project: to view, rescore, compare or imitate."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Files of one form."""
    form: Annotated[Literal["messages", "inspect"], tyro.conf.arg(name="from")]
    """Form of the files: lines with `messages`, as OpenAI's fine-tuning and `palaestra export` have them, or logs of
    inspect_ai."""
    out: Path
    """The new file of episodes (.jsonl)."""
    env: Annotated[str, tyro.conf.arg(metavar="ENV-ID")] = "imported/Dialogue-v0"
    """Name of the environment in the episodes, where the file has none. It need not be registered."""


def run(arguments: Sequence[str]) -> int:
    """Write the episodes."""
    return run_reported(ImportOptions, "import", arguments, _import)


def _import(options: ImportOptions, figures: dict[str, Any]) -> int:
    broken = 0
    if not options.files:
        raise UsageError("name a file to read, such as log.json")

    def records() -> Iterator[Record]:
        nonlocal broken
        for path in options.files:
            for record in records_of(options.form, path, options.env):
                broken += record.episode.reward is None
                yield record

    count = write(options.out, records())
    show_line(Console(), f"{options.out}: {count} episodes" + (f", {broken} of them BROKEN" if broken else ""))
    figures |= {"episodes": count, "broken": broken}
    return 0
