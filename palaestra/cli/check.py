"""`palaestra check ID`: test whether an environment keeps the contract."""

import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import note, show_line
from palaestra.cli.ids import resolve
from palaestra.cli.output import Reported, run_reported
from palaestra.errors import MissingExtra, UsageError
from palaestra.plain import from_pairs
from palaestra.registry import as_registered, games, registered
from palaestra.shortening import visible

INDENT = 7
REPORT_SECONDS = 10.0
"""Seconds after which a line names the check that runs."""
STYLES = {"ok": "green", "skip": "none", "FAIL": "red"}


@dataclass(frozen=True)
class CheckOptions(Reported):
    """Test environments against the contract, hostile input and cheats."""

    ids: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[ENV-ID ...]", help_behavior_hint="")
    ] = ()
    """Environments to check, or games, such as two-hop or my_module:me/Mine-v0; by default all registered ones."""
    all: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check all registered environments, in addition to those that are named."""
    env_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KEY=VALUE ...]")] = ()
    """KEY=VALUE options for the environments that are named: tasks=problems.jsonl, or any option of their classes."""


def run(arguments: Sequence[str]) -> int:
    """Print the findings. Return 1 if a check failed."""
    return run_reported(CheckOptions, "check", arguments, _check)


def _check(options: CheckOptions, figures: dict[str, Any]) -> int:
    from palaestra.envs.checks.check import check

    console, failed, absent = Console(), 0, []
    environments: dict[str, list[dict[str, str]]] = {}
    named_ids = [resolve(text).rpartition(":")[2] for text in options.ids]
    chosen = from_pairs(options.env_options, "env_options")
    if chosen and not named_ids:
        raise UsageError("--env-options are for environments that are named, and none is")
    for env_id in dict.fromkeys([*named_ids, *([*registered(), *games()] if options.all or not named_ids else ())]):
        show_line(console, as_registered(env_id), "bold")
        try:
            findings = check(env_id, chosen if env_id in named_ids else {}, _reporter())
        except MissingExtra as lacking:
            if env_id in named_ids:
                raise
            absent.append(env_id)
            _show("skip", f"not installed  {lacking}", console)
            continue
        # Failures are printed last, where they are seen without scrolling.
        skips: dict[str, list[str]] = {}
        for finding in sorted(findings, key=lambda one: (not one.passed, not one.skipped)):
            failed += not finding.passed
            outcome = "FAIL" if not finding.passed else "skip" if finding.skipped else "ok"
            row = {"check": finding.name, "outcome": outcome.lower(), "message": finding.message}
            environments.setdefault(env_id, []).append(row)
            if outcome == "skip":
                skips.setdefault(finding.message, []).append(finding.name)
                continue
            for message, names in skips.items():
                _show("skip", f"{', '.join(names)}  {message}", console)
            skips.clear()
            _show(outcome, f"{finding.name}  {finding.message}" if finding.message else finding.name, console)
    figures |= {"failed": failed, "environments": environments, "not_installed": absent}
    console.print(f"{failed} failed" if failed else "all passed")
    if absent:
        show_line(console, f"not checked, for they are not installed: {', '.join(absent)}")
    return 1 if failed else 0


def _reporter() -> Callable[[str], None]:
    """Return a function that names the check that begins, at most every REPORT_SECONDS: findings come at the end."""
    reported = began = time.monotonic()

    def report(name: str) -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            note(f"{now - began:.0f} s, now: {name}")
            reported = now

    return report


def _show(outcome: str, text: str, console: Console) -> None:
    """Print one finding, with its further lines indented."""
    lines = textwrap.wrap(visible(text), max(20, console.width - INDENT), drop_whitespace=True)
    console.print(f"  {outcome:<{INDENT - 2}}", style=STYLES[outcome], end="", highlight=False)
    show_line(console, f"\n{' ' * INDENT}".join(lines))
