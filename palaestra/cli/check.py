"""`palaestra check ID`: does an environment keep the contract?"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import gymnasium
import tyro
from rich.console import Console

from palaestra.cli.ids import resolve
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.registry import check_options, games, is_game, load_author, preset, registered, registered_game

INDENT = 7
STYLES = {"ok": "green", "skip": "none", "FAIL": "red"}


@dataclass(frozen=True)
class Options:
    """Test environments against the contract, hostile input and cheats."""

    ids: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[ENV-ID ...]", help_behavior_hint="")
    ] = ()
    """Environments to check, or games, such as two-hop or my_module:me/Mine-v0; all registered ones when none is
    named."""
    all: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """All registered ones, beside those that are named."""
    env_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KEY=VALUE ...]")] = ()
    """KEY=VALUE for the environments that are named: tasks=problems.jsonl, or what their classes take."""


def run(arguments: Sequence[str]) -> int:
    """Print what was found; 1 when something failed."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra check")
    from palaestra.envs.checks.check import check
    from palaestra.envs.checks.game_check import check_game
    from palaestra.envs.core.opening import open_env
    from palaestra.envs.core.transcript import visible
    from palaestra.envs.games.openers import one_game

    console, failed = Console(), 0
    named = [resolve(text).rpartition(":")[2] for text in options.ids]
    chosen = from_pairs(options.env_options, "env_options")
    if chosen and not named:
        raise UsageError("--env-options are for environments that are named, and none is")
    for env_id in dict.fromkeys([*named, *([*registered(), *games()] if options.all or not named else ())]):
        entry = registered_game(env_id)[0] if is_game(env_id) else gymnasium.spec(env_id).entry_point
        if isinstance(entry, str):  # Before any check: all of them would stumble over a class that is not there.
            load_author(entry, f"{env_id}: its class")
        console.print(env_id, style="bold", markup=False, highlight=False, soft_wrap=True)
        given = chosen if env_id in named else {}
        if given:  # A mistake in them would fail every check.
            check_options(env_id, given)
            one_game(env_id, given) if is_game(env_id) else open_env(env_id, given).close()
        with preset(env_id, given):
            found = check_game(env_id) if is_game(env_id) else check(env_id)
        for finding in found:
            failed += not finding.passed
            outcome = "FAIL" if not finding.passed else "skip" if finding.skipped else "ok"
            said = f"{finding.name}  {finding.message}" if finding.message else finding.name
            lines = textwrap.wrap(visible(said), max(20, console.width - INDENT), drop_whitespace=True)
            console.print(f"  {outcome:<{INDENT - 2}}", style=STYLES[outcome], end="", highlight=False)
            console.print(f"\n{' ' * INDENT}".join(lines), markup=False, highlight=False, soft_wrap=True)
    console.print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0
