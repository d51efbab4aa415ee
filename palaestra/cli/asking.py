"""The parts of `palaestra play`'s questions that know no episode: a file, a number, tools, tokens.

Left out: what a question does (`desk`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from palaestra.envs.core.transcript import visible
from palaestra.episode import Message
from palaestra.errors import UsageError

Tools = Mapping[str, Mapping[str, Any]]
"""What agents are told of tools, by name."""


def turn_of_file(name: str) -> str:
    """A file's text; a program of Python's as an agent hands it in, in a fence that is longer than any within it."""
    if not name:
        raise UsageError("expected /file PATH: its text is the turn, a .py file's as a fenced program")
    try:
        path = Path(name).expanduser()
        if not path.is_file():
            raise UsageError(f"/file {name}: there is no such file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:  # The last for the home of nobody.
        raise UsageError(f"/file {name} cannot be read as text: {error}") from error
    if path.suffix != ".py":
        return text
    fence = "`" * max(3, *(len(found) + 1 for found in re.findall("`+", text)), 0)
    return f"{fence}python\n{text.rstrip()}\n{fence}"


def described(tools: Tools) -> Iterator[tuple[str, str]]:
    """Each tool with its arguments, and what it does."""
    for name, tool in tools.items():
        parameters = tool.get("parameters", {})
        shown = [
            f"{key}: {_kind(what)}" + ("" if key in parameters.get("required", []) else " (optional)")
            for key, what in parameters.get("properties", {}).items()
        ]
        yield f"{name}({', '.join(shown)})", tool.get("description", "")


def number_in(text: str, command: str) -> int | None:
    """The number after a command, or None where there is none."""
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{command} {text}: expected a number")
    return int(text)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    return str(schema.get("type", "any"))


def show_tokens(console: Console, model: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
    """Print a dialogue as a model would see it, token by token.

    What the agent says, and would be trained on, stands out and lies between ‹ and ›.
    """
    from palaestra.agents import Chat
    from palaestra.agents.conversation import written_rows
    from palaestra.agents.local_model import open_tokenizer

    chat = Chat(open_tokenizer(model))
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
