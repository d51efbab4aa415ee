"""`palaestra check ID`: does an environment keep the contract?"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.ids import resolve
from palaestra.errors import MissingExtra, UsageError
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
    from palaestra.envs.games.openers import one_game

    console, failed, absent = Console(), 0, []
    named = [resolve(text).rpartition(":")[2] for text in options.ids]
    chosen = from_pairs(options.env_options, "env_options")
    if chosen and not named:
        raise UsageError("--env-options are for environments that are named, and none is")
    for env_id in dict.fromkeys([*named, *([*registered(), *games()] if options.all or not named else ())]):
        entry = registered_game(env_id)[0] if is_game(env_id) else gymnasium.spec(env_id).entry_point
        if isinstance(entry, str):  # Before any check: all of them would stumble over a class that is not there.
            load_author(entry, f"{env_id}: its class")
        given = chosen if env_id in named else {}
        lacking = _lacking(env_id, given)
        if lacking is not None and env_id in named:
            raise lacking
        show_line(console, env_id, "bold")
        if lacking is not None:
            absent.append(env_id)
            _show("skip", f"not installed  {lacking}", console)
            continue
        if given:  # A mistake in them would fail every check.
            check_options(env_id, given)
            one_game(env_id, given) if is_game(env_id) else open_env(env_id, given).close()
        with preset(env_id, given):
            found = check_game(env_id) if is_game(env_id) else check(env_id)
        for finding in found:
            failed += not finding.passed
            outcome = "FAIL" if not finding.passed else "skip" if finding.skipped else "ok"
            _show(outcome, f"{finding.name}  {finding.message}" if finding.message else finding.name, console)
    console.print(f"{failed} failed" if failed else "all passed")
    if absent:
        said = f"not checked, for they are not installed: {', '.join(absent)}"
        show_line(console, said)
    return 1 if failed else 0


def _lacking(env_id: str, given: Mapping[str, Any]) -> MissingExtra | None:
    """The extra that an environment cannot be opened without; whatever else is wrong with it, the checks say."""
    from palaestra.envs.core.opening import open_env
    from palaestra.envs.games.openers import one_game

    try:
        if is_game(env_id):
            one_game(env_id, given)
        else:
            env = open_env(env_id, given)
            try:
                env.reset(seed=0)
            finally:
                env.close()
    except MissingExtra as error:
        return error
    except Exception:
        return None
    return None


def _show(outcome: str, text: str, console: Console) -> None:
    """A line of what was found, indented where it goes on."""
    from palaestra.envs.core.transcript import visible

    lines = textwrap.wrap(visible(text), max(20, console.width - INDENT), drop_whitespace=True)
    console.print(f"  {outcome:<{INDENT - 2}}", style=STYLES[outcome], end="", highlight=False)
    show_line(console, f"\n{' ' * INDENT}".join(lines))
