"""An engine whose answers come from a person at the keyboard, one request at a time.

The person sees the new messages and types a turn of one or more lines. An empty line or Ctrl-D ends the turn, and
`/call NAME key=value` writes a call. If standard input is a file or a pipe, its paragraphs are the turns. The messages
may contain text of a model or a web page, so control characters are shown escaped. `poll` waits for the person without
a time limit. Left out: stepping an environment without an agent (`palaestra play`).
"""

import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TextIO

from palaestra import formats
from palaestra.episode import Message, Start
from palaestra.errors import UsageError
from palaestra.formats import Format, ParsedCall
from palaestra.protocols import Completion, Request
from palaestra.shortening import visible

_HELP = (
    "Your turn ends with an empty line or Ctrl-D. /call NAME key=value ... calls a tool; a turn without a call is the "
    "answer, or said to the user. Ctrl-D at the start of a turn leaves."
)
_INPUT_ENDED_FAULT = "standard input has ended, so nobody is at the keyboard"


class HumanPolicy:
    """Engine that answers each request with the turn that a person types."""

    sampled = 0
    """Always 0: a human player samples no tokens."""

    def __init__(self, *, format: str = "hermes", read: TextIO | None = None, write: TextIO | None = None) -> None:
        """`format` is the environment's call format. `read` is standard input by default, `write` standard error."""
        self._form: Format = formats.get(format)
        self._read = read or sys.stdin or io.StringIO()
        if isinstance(self._read, io.TextIOWrapper):  # One wrong byte should not cost the lines around it.
            with suppress(io.UnsupportedOperation):
                self._read.reconfigure(errors="replace")
        self._write = write or sys.stderr
        self._tickets = count()
        self._waiting: dict[int, Request] = {}
        self._shown_counts: dict[int, int] = {}
        """Count of messages of each dialogue that the person has seen, by its row."""
        self._last: Start | None = None
        self._input_ended = False

    def submit(self, request: Request) -> int:
        """Queue the request and return its ticket. `poll` shows the request to the person."""
        ticket = next(self._tickets)
        self._waiting[ticket] = request
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Ask the person for one turn and return it.

        Ask for the episode of the last turn if it has a request, otherwise for the one that has waited longest.
        """
        if not self._waiting:
            return []
        same = (ticket for ticket, request in self._waiting.items() if request.start is self._last)
        ticket = next(same, next(iter(self._waiting)))
        request = self._waiting.pop(ticket)
        self._last = request.start
        text = None if self._input_ended else self._ask(request)
        if text is None:
            self._input_ended = True
            return [Completion(ticket, fault=_INPUT_ENDED_FAULT)]
        return [Completion(ticket, text=text)]

    def cancel(self, ticket: int) -> None:
        """Drop a request that the person has not seen yet."""
        self._waiting.pop(ticket, None)

    def close(self) -> None:
        """Drop all waiting requests."""
        self._waiting.clear()

    # Private methods.

    def _say(self, text: str) -> None:
        print(text, file=self._write, flush=True)

    def _ask(self, request: Request) -> str | None:
        """Return the turn that the person types, or None if standard input has ended."""
        seen_count = self._shown_counts.get(request.row, 0)
        self._say(f"\n--- task {request.start.task}, turn {request.turn + 1} ---")
        for message in request.messages[seen_count:]:
            if message["role"] != "assistant" or not seen_count:  # What the person has typed need not be shown again.
                self._say(_line(message))
        if not seen_count:
            for tool in request.tools:
                self._say(f"tool: {_signature(tool)}")
            self._say(_HELP)
        self._shown_counts[request.row] = len(request.messages)
        while True:
            lines = self._lines()
            if lines is None:
                return None
            try:
                return self._turn_text(lines, request.tools)
            except ValueError as error:
                self._say(f"{visible(str(error))}; type the turn again")

    def _lines(self) -> list[str] | None:
        """Return the lines up to an empty one outside a code fence, or up to the end of input; None for no lines."""
        lines: list[str] = []
        fenced = False
        while True:
            line = self._read.readline()
            if not line:
                return lines or None
            line = line.rstrip("\r\n").encode("utf-8", "replace").decode("utf-8")
            fenced ^= line.lstrip().startswith(("```", "~~~"))
            if line.strip() or fenced:
                lines.append(line)
            elif lines:
                return lines

    def _turn_text(self, lines: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the turn as it was typed, but with each `/call` line written in the environment's call format."""
        text_lines, calls = [], []
        for line in lines:
            if line.split(maxsplit=1)[:1] == ["/call"]:
                calls.append(typed_call(line.lstrip().removeprefix("/call").lstrip(), tools))
            else:
                text_lines.append(line)
        return self._form.render(calls, "\n".join(text_lines)) if calls else "\n".join(text_lines)


def _line(message: Message) -> str:
    name = f" ({visible(str(message['name']))})" if message.get("name") else ""
    return f"{message['role']}{name}: {visible(str(message.get('content') or ''))}"


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = tool.get("function", tool).get("parameters", {}).get("properties", {})
    return properties


def _signature(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    parameter_list = ", ".join(f"{name}: {schema.get('type', 'any')}" for name, schema in _parameters(tool).items())
    return visible(f"{function.get('name')}({parameter_list}) - {function.get('description', '')}")


def typed_call(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedCall:
    """Return the call that a typed `NAME key=value ...` means. Raise UsageError if the text is malformed.

    A parameter of type string gets the text unchanged. For any other type the text is read as JSON if it is JSON.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"/call {text}: {error}; put quotes around blanks") from error
    if not words:
        raise UsageError('expected /call NAME KEY=VALUE ..., such as /call search query="Deka born"')
    schemas = _parameters(next((tool for tool in tools if tool.get("function", tool).get("name") == words[0]), {}))
    arguments: dict[str, Any] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not (equals and name) or name in arguments:
            raise UsageError(f"/call {words[0]} has {word!r}; expected KEY=VALUE, each key once, quotes around blanks")
        arguments[name] = value
        if schemas.get(name, {}).get("type") != "string":
            with suppress(ValueError, RecursionError):
                arguments[name] = json.loads(value)
    return ParsedCall(words[0], arguments)
