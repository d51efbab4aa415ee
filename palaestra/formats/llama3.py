"""The llama3 call format: `{"name": ..., "parameters": {...}}`, bare or behind `<|python_tag|>`, `;` between calls.

Written by Llama 3.1 to 3.3. With no tag around it, an object counts as a call only where it begins a line (or follows
`;`), its first key is one that calls have, and it has no key that calls do not have: any other JSON is an answer. Left
out: `<|python_tag|>` before code, for the tools that the model brings along itself.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import THINK, Turn, before_calls, behind_fault, read_turn, skip_blank
from palaestra.formats.stray import told
from palaestra.formats.values import Typing, as_call, decode, dump

EXAMPLE = '{"name": "tool", "parameters": {"argument": "value"}}'

_TAG = "<|python_tag|>"
_KEYS = frozenset({"type", "id", "name", "parameters", "arguments", "args"})
MARKERS = re.compile(
    r"<\|python_tag\|>|<\|eo[tm]_id\|>"
    r"|(?:^|;|(?<=\})|(?<=</think>))[ \t]*+(?=\{[ \t\r\n]*+\"(?:type|name|parameters)\"[ \t\r\n]*+:)"
    rf"|{THINK}",
    re.MULTILINE,
)
"""Where a call may begin, the ends of turns, and thinking."""


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, MARKERS, lambda turn, marker: _read(turn, marker, tools))
    return told(parsed, text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls as the chat template does, without the tag."""
    written = [dump({"name": call.name, "parameters": call.arguments}) for call in calls]
    return before_calls(content, "; ".join(written))


def _read(turn: Turn, marker: "re.Match[str]", tools: Schemas) -> int:
    text, tagged = turn.text, marker[0] == _TAG
    if marker[0].startswith("<") and not tagged:  # The end of the turn or message, which decoding has kept.
        return marker.end()
    begin = skip_blank(text, marker.end())
    if tagged and not text.startswith("{", begin):
        turn.unexpected(f"a JSON object after {_TAG}", begin)
        return behind_fault(text, begin, MARKERS)
    value, end, reason, lenient = decode(text, begin)
    if reason:
        turn.fault(reason, end)
        return behind_fault(text, max(end, begin + 1), MARKERS)
    if not tagged and not _is_call(value):
        turn.content.append(text[marker.start() : end])
        return end
    call = as_call(value, lenient, "parameters")
    # The smaller of these models write every value as a string.
    turn.add(Typing(tools, call.name).nested(call) if isinstance(call, ParsedCall) else call, begin)
    return end


def _is_call(value: Any) -> bool:
    """Nothing marks a call without its tag, so that an answer in JSON has to be told apart by its keys."""
    return "name" in value and _KEYS.issuperset(value)
