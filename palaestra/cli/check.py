"""`palaestra check ID`: does an environment keep the contract?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from palaestra.cli.ids import resolve
from palaestra.registry import registered


@dataclass(frozen=True)
class Options:
    """Test environments against the contract, hostile input and cheats."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Environments to check; all registered ones when none is named."""


def run(arguments: Sequence[str]) -> int:
    """Print what was found; 1 when something failed."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra check")
    from palaestra.envs.core.check import check

    console, failed = Console(), 0
    for env_id in [resolve(text).rpartition(":")[2] for text in options.ids] or registered():
        console.print(f"[bold]{env_id}[/bold]")
        for finding in check(env_id):
            failed += not finding.passed
            mark = "[red]FAIL[/red]" if not finding.passed else "skip" if finding.skipped else "[green]ok[/green]  "
            console.print(f"  {mark} {finding.name}", end="", highlight=False)
            console.print(f"  {finding.message}" if finding.message else "", markup=False, highlight=False)
    console.print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0
