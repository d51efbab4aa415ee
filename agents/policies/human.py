"""An engine whose answers come from a person at the keyboard, one question at a time.

The person sees what is new and types a turn of one or more lines; an empty line or Ctrl-D ends it, and
`/call NAME key=value` writes a call. Standard input may be a file or a pipe: then its paragraphs are the turns. What is
shown may come from a model or a page, so control characters are spelled out. `poll` waits for the person, however long
that takes. Left out: stepping an environment without an agent (`palaestra play`).
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

_HELP = (
    "Your turn ends with an empty line or Ctrl-D. /call NAME key=value ... calls a tool; a turn without a call is the "
    "answer. Ctrl-D at the start of a turn leaves."
)
_GONE = "standard input has ended, so nobody is at the keyboard"


class HumanPolicy:
    """Answers each request with what a person types."""

    sampled = 0
    """It has no tokens."""

    def __init__(self, *, format: str = "hermes", read: TextIO | None = None, write: TextIO | None = None) -> None:
        """`format` is the environment's call format. Reads standard input and writes standard error by default."""
        self._form: Format = formats.get(format)
        self._read = read or sys.stdin or io.StringIO()
        if isinstance(self._read, io.TextIOWrapper):  # One wrong byte should not cost the lines around it.
            with suppress(io.UnsupportedOperation):
                self._read.reconfigure(errors="replace")
        self._write = write or sys.stderr
        self._tickets = count()
        self._waiting: dict[int, Request] = {}
        self._shown: dict[int, int] = {}
        """How many messages of each dialogue the person has seen, by its row."""
        self._last: Start | None = None
        self._gone = False

    def submit(self, request: Request) -> int:
        """Put the request in line; `poll` asks."""
        ticket = next(self._tickets)
        self._waiting[ticket] = request
        return ticket

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Ask for one turn, of the episode that was played last if it waits, else of the one that waits longest."""
        if not self._waiting:
            return []
        same = (ticket for ticket, request in self._waiting.items() if request.start is self._last)
        ticket = next(same, next(iter(self._waiting)))
        request = self._waiting.pop(ticket)
        self._last = request.start
        text = None if self._gone else self._ask(request)
        if text is None:
            self._gone = True
            return [Completion(ticket, fault=_GONE)]
        return [Completion(ticket, text=text)]

    def cancel(self, ticket: int) -> None:
        """Forget a request that was not asked yet."""
        self._waiting.pop(ticket, None)

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    # Inside.

    def _say(self, text: str) -> None:
        print(text, file=self._write, flush=True)

    def _ask(self, request: Request) -> str | None:
        """A turn, or None when the person has left."""
        seen = self._shown.get(request.row, 0)
        self._say(f"\n--- task {request.start.task}, turn {request.turn + 1} ---")
        for message in request.messages[seen:]:
            if message["role"] != "assistant" or not seen:  # What the person has typed need not be shown again.
                self._say(_line(message))
        if not seen:
            for tool in request.tools:
                self._say(f"tool: {_signature(tool)}")
            self._say(_HELP)
        self._shown[request.row] = len(request.messages)
        while True:
            lines = self._lines()
            if lines is None:
                return None
            try:
                return self._written(lines, request.tools)
            except ValueError as error:
                self._say(f"{visible(str(error))}; type the turn again")

    def _lines(self) -> list[str] | None:
        """The lines up to an empty one outside a fence, or the end; None where there are none before the end."""
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

    def _written(self, lines: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> str:
        """The turn as typed, its `/call` lines in the environment's format."""
        said, calls = [], []
        for line in lines:
            if line.split(maxsplit=1)[:1] == ["/call"]:
                calls.append(typed_call(line.lstrip().removeprefix("/call").lstrip(), tools))
            else:
                said.append(line)
        return self._form.render(calls, "\n".join(said)) if calls else "\n".join(said)


def visible(text: str) -> str:
    """Control characters spelled out, so that nothing a model or a page says moves the cursor.

    The same as in `envs.core.transcript`, which this room may not import.
    """
    return "".join(letter if letter in "\n\t" or letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _line(message: Message) -> str:
    name = f" ({visible(str(message['name']))})" if message.get("name") else ""
    return f"{message['role']}{name}: {visible(str(message.get('content') or ''))}"


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool.get("function", tool).get("parameters", {}).get("properties", {})
    return found


def _signature(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    listed = ", ".join(f"{name}: {schema.get('type', 'any')}" for name, schema in _parameters(tool).items())
    return visible(f"{function.get('name')}({listed}) - {function.get('description', '')}")


def typed_call(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedCall:
    """The call that `NAME key=value ...` writes; a UsageError says what is wrong with it.

    A parameter that wants text gets it as it stands, any other the JSON that it may be.
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
