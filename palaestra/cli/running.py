"""What commands that take a run through its steps share: opening its folder, showing it, and how it ends.

Ctrl-C ends a run with a checkpoint, an error leaves what is safe, and a run that has made nothing leaves its name free.
"""

import shlex
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from palaestra.cli.blame import blaming
from palaestra.cli.display import display, note
from palaestra.cli.output import reporting
from palaestra.errors import PalaestraError
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.scale.ranks import here

_HELD_BACK = "\nthis step ends first, then a checkpoint is written; Ctrl-C again ends at once, without it\n"


def go_on(
    command: str,
    opened: Callable[[], tuple[Run, Any]],
    show: Callable[[Run], None],
    json: Path | None,
    resumed: bool = False,
) -> int:
    """Take a run to its end and show it; returns the exit status. `opened` gives the run, and its model or None."""
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
                    figures |= {"run": str(record.folder), **record.summary}
            except Interrupted as stop:
                print(f"\ninterrupted; {_way_on(command, record)}", file=sys.stderr)
                return 128 + stop.number
            except PalaestraError as error:
                if not resumed and record.withdraw():
                    raise  # There is nothing to go on with, and the corrected command shall find the name free.
                print(f"palaestra {command}: {error}\n{_way_on(command, record)}", file=sys.stderr)
                return 2
    return 0


def _way_on(command: str, record: Run) -> str:
    """One line: what is safe, and how to go on."""
    from palaestra.trainers.run.checkpoint import last_step
    from palaestra.trainers.run.saved_config import repeated

    step = last_step(record.checkpoints)
    way = shlex.join(["palaestra", command, "--resume", str(record.folder), *repeated(record.config)])
    if step is None:
        return f"no step is saved yet: {way} begins again with the same options; for others name another --run"
    return f"step {step} is saved; go on with: {way}"
