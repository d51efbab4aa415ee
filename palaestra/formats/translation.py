"""A turn in another dialect: what is said and thought stays, its calls are written anew.

Demonstrators write hermes, and recorded episodes whatever was read when they were played; an agent of another family
has other words for a call. Left out: a turn with a fault in it, which is left as it is, so that it stays the fault
that it was.
"""

from palaestra.errors import UsageError
from palaestra.formats.parsed import Format, Parsed, ParsedCall, Schemas

_THOUGHT = "</think>"


def translate(text: str, source: Format, target: Format, tools: Schemas = ()) -> str:
    """The turn as `target` writes it. One that `target` reads as calls already, or without a call, stays as it is.

    A UsageError where the target has no way to write these calls.
    """
    if source is target:
        return text
    found = source.parse(text, tools)
    if not found.calls or not _sound(found) or _sound(target.parse(text, tools)):
        return text
    thought, mark, rest = text.rpartition(_THOUGHT)
    said = source.parse(rest, tools)
    written = target.render([call for call in said.calls if isinstance(call, ParsedCall)], said.content)
    turn = f"{thought}{mark}\n{written}" if mark else written
    if target.parse(turn, tools).calls != found.calls:
        # A thought ends inside a call, or a word of the turn means something of its own over there.
        raise UsageError(f"this turn cannot be written in another format: {text[:200]!r}")
    return turn


def _sound(parsed: Parsed) -> bool:
    """Calls, and no fault."""
    return bool(parsed.calls) and all(isinstance(call, ParsedCall) for call in parsed.calls)
