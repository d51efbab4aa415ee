"""What the desks of `palaestra play` have in common: a line is a turn, and one that starts with / asks.

Left out: what a turn does, and the questions that depend on it (`desk`, `game_desk`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from palaestra import formats
from palaestra.envs.core.transcript import transcript
from palaestra.episode import Message
from palaestra.errors import UsageError

Schemas = Sequence[Mapping[str, Any]]


class Asking:
    """A console to speak through, and a method `_do_NAME` for each question /NAME."""

    help = ""

    def __init__(self, console: Console, typed: bool) -> None:
        """`typed` turns stand on the terminal already; others are shown."""
        self.console, self.typed = console, typed
        self.broken = False
        self._commands: dict[str, Callable[[str], None]] = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def take(self, text: str) -> bool:
        """Answer one input; False when it was the last."""
        if not text.startswith("/"):
            self._turn(text, echo=not self.typed)
            return True
        name, _, rest = text[1:].partition(" ")
        if name in ("quit", "exit", "q"):
            return False
        if name not in self._commands:
            raise UsageError(f"there is no /{name}; /help lists what there is, and /raw sends a text as it stands")
        self._commands[name](rest.strip())
        return True

    # What a desk defines.

    @property
    def _schemas(self) -> Schemas:
        """Of the tools that may be called now."""
        raise NotImplementedError

    @property
    def _format(self) -> str:
        """In which calls are read."""
        raise NotImplementedError

    def _turn(self, text: str, echo: bool = False) -> None:
        raise NotImplementedError

    # The questions.

    def _do_help(self, rest: str) -> None:
        self._say(self.help)

    def _do_call(self, rest: str) -> None:
        from palaestra.agents.policies.human import typed_call

        self._turn(formats.get(self._format).render([typed_call(rest, self._schemas)]), echo=True)

    def _do_file(self, rest: str) -> None:
        if not rest:
            raise UsageError("expected /file PATH: its text is the turn, a .py file's as a fenced program")
        path = Path(rest).expanduser()
        try:
            if not path.is_file():
                raise UsageError(f"/file {rest}: there is no such file")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"/file {rest} cannot be read as text: {error}") from error
        self._turn(_fenced(text) if path.suffix == ".py" else text, echo=True)

    def _do_tools(self, rest: str) -> None:
        for name, tool in self._tools().items():
            parameters = tool.get("parameters", {})
            required = parameters.get("required", [])
            shown = [
                f"{key}: {_kind(what)}" + ("" if key in required else " (optional)")
                for key, what in parameters.get("properties", {}).items()
            ]
            self._say(f"{name}({', '.join(shown)})", style="bold")
            self._say(f"    {tool.get('description', '')}")
        if not self._tools():
            self._say("there are no tools here; a turn is the answer")

    # Inside.

    def _tools(self) -> Mapping[str, Mapping[str, Any]]:
        return {tool["function"]["name"]: tool["function"] for tool in self._schemas}

    def _show(self, messages: Sequence[Message]) -> None:
        if messages:
            self._say(transcript(messages))

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_kind(one) for one in schema["anyOf"])
    return str(schema.get("type", "any"))


def _fenced(program: str) -> str:
    """A program as an agent hands it in, in a fence that is longer than any within it."""
    fence = "`" * max(3, *(len(found) + 1 for found in re.findall("`+", program)), 0)
    return f"{fence}python\n{program.rstrip()}\n{fence}"


def number_in(text: str, command: str) -> int | None:
    """The number after a command, or None where there is none."""
    if not text:
        return None
    if not text.isdigit():
        raise UsageError(f"{command} {text}: expected a number")
    return int(text)
