"""`palaestra list`: the registered environments, what they are and which tools they give."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import tyro
from rich.console import Console

from palaestra.cli.display import table
from palaestra.cli.ids import short_names
from palaestra.registry import game_class, games, load_author, registered

BESIDE = 52
"""Columns that a table needs beside the longest id; where there are fewer, each environment is a paragraph."""


@dataclass(frozen=True)
class Options:
    """Show the registered environments."""


def run(arguments: Sequence[str]) -> int:
    """Print the ids, as a table where it fits."""
    tyro.cli(Options, args=list(arguments), prog="palaestra list")
    console = Console()
    rows = {env_id: (", ".join(_tools(env_id)) or "none", _about(env_id)) for env_id in registered()}
    rows |= {name: (f"seats: {', '.join(game_class(name).seats)}", _first_line(game_class(name))) for name in games()}
    known = f"commands know the suite's as {', '.join(short_names())}"
    names = textwrap.fill(known, max(20, console.width), break_on_hyphens=False, break_long_words=False)
    if console.width >= max(map(len, rows)) + BESIDE:
        drawn = table("", rows, ("tools", "task"), justify="left")
        drawn.columns[0].no_wrap = True  # An id in two pieces can be neither searched for nor copied.
        console.print(drawn)
        console.print(names, markup=False, highlight=False, soft_wrap=True)
        return 0
    for env_id, (tools, about) in rows.items():
        console.print(env_id, style="bold", markup=False, highlight=False, soft_wrap=True)
        for text in (about, tools if tools.startswith("seats") else f"tools: {tools}"):
            said = textwrap.fill(text, max(20, console.width), initial_indent="  ", subsequent_indent="  ")
            console.print(said, markup=False, highlight=False, soft_wrap=True)
    console.print(names, markup=False, highlight=False, soft_wrap=True)
    return 0


def _about(env_id: str) -> str:
    """The first line of the class's docstring."""
    entry = gymnasium.spec(env_id).entry_point
    assert isinstance(entry, str), "palaestra.register takes entry points as strings"
    return _first_line(load_author(entry, f"{env_id}: its class"))


def _first_line(author: Any) -> str:
    lines = (author.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def _tools(env_id: str) -> list[str]:
    """The names of the tools that an agent is offered."""
    _about(env_id)  # A class that cannot be loaded is explained there; Gymnasium would only raise.
    env = gymnasium.make(env_id)
    try:
        _, info = env.reset(seed=0)
        return [schema["function"]["name"] for schema in json.loads(info["tools"])]
    finally:
        env.close()
