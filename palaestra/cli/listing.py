"""`palaestra list`: the registered environments, what they are and which tools they give."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import gymnasium
import tyro
from rich.console import Console

from palaestra.cli.display import table
from palaestra.registry import registered


@dataclass(frozen=True)
class Options:
    """Show the registered environments."""


def run(arguments: Sequence[str]) -> int:
    """Print a table of the ids."""
    tyro.cli(Options, args=list(arguments), prog="palaestra list")
    rows = {}
    for env_id in registered():
        entry = gymnasium.spec(env_id).entry_point
        assert isinstance(entry, str), "palaestra.register takes entry points as strings"
        module, name = entry.split(":")
        about = (getattr(import_module(module), name).__doc__ or "").strip().splitlines()
        env = gymnasium.make(env_id)
        _, info = env.reset(seed=0)
        tools = ", ".join(schema["function"]["name"] for schema in json.loads(info["tools"]))
        rows[env_id] = (tools, about[0] if about else "")
        env.close()
    Console().print(table("", rows, ("tools", "task")))
    return 0
