"""Shared code of the commands that train a run: open its folder, show its progress, and end it.

Ctrl-C ends a run with a checkpoint. After an error, everything that was saved stays. A run that has saved nothing is
deleted, so that its name is free again.
"""

import shlex
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import tyro

from palaestra.cli.blame import blaming
from palaestra.cli.display import display, note
from palaestra.cli.output import reporting, say_error
from palaestra.cli.short_help import short_help
from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.scale.ranks import here
from palaestra.trainers.validation import flat, plain

_HELD_BACK = "\nthis step ends first, then a checkpoint is written; Ctrl-C again ends at once, without it\n"
OptionsT = TypeVar("OptionsT")


def train_to_end(
    command: str,
    opened: Callable[[], tuple[Run, Any]],
    show: Callable[[Run], None],
    json: Path | None,
    resumed: bool = False,
) -> int:
    """Train a run to its end, show it, and return the exit status. `opened` returns the run, and its model or None."""
    with reporting(json) as figures, Interrupts(_HELD_BACK) as interrupts:
        try:
            record, local = opened()
        except Interrupted as stop:
            print("\ninterrupted before anything was done", file=sys.stderr)
            return 128 + stop.number
        with record:
            if record.finished:
                length = record.config.LENGTH
                count = getattr(record.config, length)
                if here().first:
                    note(f"{record.folder} is finished: {count} {length}")
                    show(record)
                    _show_causes(record)
                    figures |= {"run": str(record.folder), **record.summary}
                return 0
            from palaestra.trainers.training import train

            try:
                with blaming():
                    if not here().first:
                        deque(train(record, model=local, interrupts=interrupts), 0)
                        return 0
                    with display() as on_progress:
                        deque(train(record, model=local, interrupts=interrupts, on_progress=on_progress), 0)
                    show(record)
                    _show_causes(record)
                    figures |= {"run": str(record.folder), **record.summary}
            except Interrupted as stop:
                _show_causes(record)
                print(f"\ninterrupted; {resume_hint(command, record)}", file=sys.stderr)
                return 128 + stop.number
            except PalaestraError as error:
                if not resumed and record.withdraw():
                    raise  # Nothing can be resumed, and the corrected command must find the name free.
                _show_causes(record)
                say_error(f"palaestra {command}: {error}\n{resume_hint(command, record)}")
                return 2
    return 0


def understood(
    default: OptionsT, arguments: Sequence[str], prog: str, about: str | None = None, markers: Sequence[Any] = ()
) -> OptionsT:
    """Return the default options, changed by the arguments.

    For an unknown option the error suggests options that end in a similar word, in any section.
    """
    if {"-h", "--help"} & {*arguments}:
        print(short_help(default, prog, about))
        raise SystemExit(0)
    words = ["--help" if word == "--help-all" else word for word in arguments]
    options, unknown = tyro.cli(
        default.__class__,
        args=words,
        default=default,
        return_unknown_args=True,
        prog=prog,
        description=about,
        config=markers,
    )
    if not unknown:
        return options
    names = [name.removeprefix("config.").removesuffix(".name") for name in flat(plain(options))]
    # `env_options` is the only field whose option has another name.
    by_last = {name.rpartition(".")[2].replace("_", "-"): name.replace("env.env_", "env.") for name in names}
    wrong = next((text.partition("=")[0] for text in unknown if text.startswith("--")), unknown[0])
    close = get_close_matches(wrong.rpartition(".")[2].lstrip("-").replace("_", "-"), by_last, n=3)
    hint = " or ".join("--" + by_last[last].replace("_", "-") for last in close)
    meant = f"did you mean {hint}? " if hint and wrong.startswith("--") else ""
    raise UsageError(f"unknown option {wrong!r}; {meant}--help-all shows them all")


def _show_causes(record: Run) -> None:
    """Print why episodes of the run failed, if some did."""
    with suppress(UsageError):  # A damaged file is reported by whatever needs it.
        for line in record.causes.lines():
            note(line)


def resume_hint(command: str, record: Run) -> str:
    """Return one line of text: which step is saved, and how to resume."""
    from palaestra.trainers.run.checkpoint import last_step
    from palaestra.trainers.run.saved_config import repeated

    step = last_step(record.checkpoints)
    way = shlex.join(["palaestra", command, "--resume", str(record.folder), *repeated(record.config)])
    if step is None:
        return f"no step is saved yet: {way} begins again with the same options; for others name another --run"
    return f"step {step} is saved; go on with: {way}"
