"""`palaestra audit RUN`: check, record by record, what must be true of the records of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import show_line, table
from palaestra.cli.ids import AllowsCode, import_allowed, resolve
from palaestra.cli.output import run_reported
from palaestra.errors import PalaestraError
from palaestra.record import Record
from palaestra.registry import is_game, require_loaded

if TYPE_CHECKING:
    from palaestra.envs.records.rescore import Scorer
    from palaestra.trainers.run.offline_audit import Ledger

_SHOWN = 10


@dataclass(frozen=True)
class AuditOptions(AllowsCode):
    """Check the records of a run of GRPO: masks, turns, groups, advantages, versions, rewards, metrics."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    rescore: bool = True
    """Also compute the environment's rewards again. Rewards that run programs run them in the sandbox again."""


def run(arguments: Sequence[str]) -> int:
    """Print a row for each check. Return 1 if a check found something wrong or a line is not a record."""
    return run_reported(AuditOptions, "audit", arguments, _audit)


def _audit(options: AuditOptions, figures: dict[str, Any]) -> int:
    from palaestra.trainers.audit.audit_findings import CAUSES
    from palaestra.trainers.run.offline_audit import audit_run

    console = Console()
    import_allowed(options.allow_code)
    rescored = _reward_anew if options.rescore else None
    ledger = audit_run(options.run, partial(show_line, console), rescored, options.allow_code)
    wrong = ledger.wrong()
    rows = {
        check: (f"{ledger.checked[check]:,}", f"{wrong[check]:,}", ledger.skipped.get(check, "")) for check in CAUSES
    }
    console.print(table(f"Audit of {options.run}", rows, ("looked at", "wrong", "left out"), "left"))
    figures |= {
        "checks": {check: {"looked_at": ledger.checked[check], "wrong": wrong[check]} for check in CAUSES},
        "figures": ledger.figures,
        "defects": ledger.defects,
        "findings": [str(finding) for finding in ledger.findings],
        "causes": ledger.causes.as_dict(),
    }
    for line in (_figures_line(ledger), *ledger.causes.lines()):
        show_line(console, line)
    for finding in ledger.findings[:_SHOWN]:
        show_line(console, str(finding), "red")
    if len(ledger.findings) > _SHOWN:
        show_line(console, f"and {len(ledger.findings) - _SHOWN} more; --json FILE has them all")
    return 1 if ledger.findings or ledger.defects else 0


def _figures_line(ledger: "Ledger") -> str:
    """Return the figures of the audit as one line of text."""
    return ", ".join(
        f"{name} {value:.3g}" if value % 1 else f"{name} {value:,.0f}" for name, value in ledger.figures.items()
    )


def _reward_anew(record: Record) -> float | None:
    """Return the reward that the record's environment computes again; None for games, and after an error."""
    from palaestra.envs.records.rescore import rescore

    scorer = _scorer(record.env_id)
    if scorer is None:
        return None
    try:
        return rescore(record, scorer).episode.reward
    except PalaestraError:
        return None


@cache
def _scorer(env_id: str) -> "Scorer | None":
    from palaestra.envs.records.rescore import find_scorer

    try:
        require_loaded(env_id, "a record")
        name = resolve(env_id)
        return None if is_game(name) else find_scorer(name)
    except PalaestraError:
        return None
