"""Helpers for the commands of `palaestra play` that need no episode: read a file or a number, show tools and tokens.

Left out: the commands themselves (`desk`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from palaestra.episode import Message
from palaestra.errors import UsageError
from palaestra.shortening import visible

Tools = Mapping[str, Mapping[str, Any]]
"""Function schemas of tools, by name."""


def turn_of_file(name: str) -> str:
    """Return a file's text as a turn; a Python program is put into a fence that is longer than any inside it."""
    if not name:
        raise UsageError("expected /file PATH: its text is the turn, a .py file's as a fenced program")
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"/file {name}: there is no such file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # RuntimeError: a home directory of an unknown user.
        raise UsageError(f"/file {name} cannot be read as text: {error}") from error
    if path.suffix != ".py":
        return text
    fence = "`" * max(3, *(len(backticks) + 1 for backticks in re.findall("`+", text)), 0)
    return f"{fence}python\n{text.rstrip()}\n{fence}"


def described(tools: Tools) -> Iterator[tuple[str, str]]:
    """Yield each tool's name with its arguments, and its description."""
    for name, tool in tools.items():
        parameters = tool.get("parameters", {})
        arguments = [
            f"{key}: {_kind(what)}" + ("" if key in parameters.get("required", []) else " (optional)")
            for key, what in parameters.get("properties", {}).items()
        ]
        yield f"{name}({', '.join(arguments)})", tool.get("description", "")


def number_in(text: str, command: str) -> int | None:
    """Return the number after a command; None if there is none."""
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{command} {text}: expected a number")
    return int(text)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_kind(choice) for choice in schema["anyOf"])
    return str(schema.get("type", "any"))


def show_tokens(
    console: Console, model: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], format: str
) -> None:
    """Print a dialogue as a model would see it, token by token. `format` is the environment's call format.

    The agent's own tokens, which training would use, are highlighted between ‹ and ›.
    """
    from palaestra.agents import Chat
    from palaestra.agents.conversation import written_rows
    from palaestra.agents.local_model import open_tokenizer
    from palaestra.agents.tool_prompt import show_tools

    tokenizer = open_tokenizer(model)
    show_tools(tokenizer, format)
    chat = Chat(tokenizer)
    for number, row in enumerate(written_rows(chat, messages, tools), start=1):
        console.print(f"row {number}: {len(row)} tokens, {int(row.sampled.sum())} of them the agent's", style="bold")
        line, inside = Text(), False
        for token, sampled in zip(row.ids.tolist(), row.sampled.tolist(), strict=True):
            if sampled != inside:
                line.append("‹" if sampled else "›", style="bold green")
                inside = sampled
            word = visible(chat.tokenizer.decode([token], skip_special_tokens=False))
            line.append(word, style="green" if sampled else "dim")
            line.append("·", style="dim")
        line.append("›" if inside else "")
        console.print(line, soft_wrap=True)
