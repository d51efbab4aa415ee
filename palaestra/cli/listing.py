"""`palaestra list`: show what each registered environment is and which tools it has, or one with its options."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import show_line, table
from palaestra.cli.ids import resolve, short_names
from palaestra.envs.arena.opening import open_machine
from palaestra.errors import PalaestraError
from palaestra.options import options_of
from palaestra.registry import (
    adapters,
    as_registered,
    author_class,
    games,
    is_game,
    load_author,
    registered,
    registered_author,
)

_UNKNOWN = "?"
"""Stands for the tools of an environment that cannot be opened."""
BESIDE = 52
"""Columns that a table needs in addition to the longest id; if there are fewer, each environment is a paragraph."""


@dataclass(frozen=True)
class ListOptions:
    """Show the registered environments."""

    env_id: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ENV-ID]", help_behavior_hint="")] = None
    """One of them, with the options that --env-options gives it and their defaults."""


def run(arguments: Sequence[str]) -> int:
    """Print all environments, as a table if the terminal is wide enough, or one environment with its options."""
    options, console = tyro.cli(ListOptions, args=list(arguments), prog="palaestra list"), Console()
    if options.env_id is not None:
        _show_one(resolve(options.env_id).rpartition(":")[2], console)
        return 0
    faults: dict[str, str] = {}
    rows = {env_id: _row(env_id, faults) for env_id in (*registered(), *games())}
    if console.width >= max(map(len, rows)) + BESIDE:
        listing = table("", rows, ("tools", "task"), justify="left")
        listing.columns[0].no_wrap = True  # An id in two pieces can be neither searched for nor copied.
        console.print(listing)
    else:
        for env_id, row in rows.items():
            _show_row(env_id, row, console)
    others = f"environments of other packages, where these are installed: {', '.join(adapters)}"
    for text in (*faults.values(), others, f"commands know the suite's as {', '.join(short_names())}"):
        _fold(text, console, "", break_on_hyphens=False, break_long_words=False)
    return 0


def _show_one(env_id: str, console: Console) -> None:
    """Print one environment, and each of its options with its default."""
    faults: dict[str, str] = {}
    _show_row(env_id, _row(env_id, faults), console)
    for text in faults.values():
        show_line(console, f"  {text}")
    _, registered_with = registered_author(env_id) or ("", {})
    author = load_author(adapters[env_id], env_id) if env_id in adapters else author_class(env_id)
    takes = options_of(author) | ({"seat": repr(None)} if is_game(env_id) else {})
    takes |= {name: repr(value) for name, value in registered_with.items()}
    show_line(console, "  options:")
    for name, default in takes.items():
        show_line(console, f"    {name}={default}" if default else f"    {name}")


def _show_row(env_id: str, row: tuple[str, str], console: Console) -> None:
    """Print an environment as a paragraph."""
    tools, about = row
    show_line(console, as_registered(env_id), "bold")
    for text in (about, tools if tools.startswith("seats") else f"tools: {tools}"):
        _fold(text, console, "  ")


def _fold(text: str, console: Console, indent: str, **how: Any) -> None:
    width = max(20, console.width)
    show_line(console, textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, **how))


def _row(env_id: str, faults: dict[str, str]) -> tuple[str, str]:
    """Return an environment's tools or seats, and the first line of its class's docstring. If it cannot be opened, add
    the reason to `faults`.
    """
    about = ""
    try:
        if env_id in adapters:
            return "the game's own, in its text", str(load_author(adapters[env_id], env_id).__doc__).splitlines()[0]
        author = author_class(env_id)
        about = ((author.__doc__ or "").strip().splitlines() or [""])[0]
        if is_game(env_id):
            return f"seats: {', '.join(author.seats)}", about
        return ", ".join(_tools(env_id)) or "none", about
    except PalaestraError as error:  # One environment that lacks a library must not hide the others.
        faults[env_id] = str(error)
        return _UNKNOWN, about


def _tools(env_id: str) -> list[str]:
    """Return the names of the tools that an agent is offered. No episode is opened, since that can take seconds."""
    machine = open_machine(env_id, {})
    try:
        return [schema["function"]["name"] for schema in machine.spec.offers[None].schemas]
    finally:
        machine.close()
