"""The llama3 call format: `{"name": ..., "parameters": {...}}`, bare or after `<|python_tag|>`, `;` between calls.

Written by Llama 3.1 to 3.3. An object without the tag is a call only if it begins a line or directly follows another
call, has only keys of calls, and has arguments or names an offered tool; any other JSON is an answer. Left out:
`<|python_tag|>` before code, which is for the built-in tools of the model.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats.dialect import Dialect, before_calls
from palaestra.formats.parsed import ParsedCall, Schemas
from palaestra.formats.scanning import BLANKS, THINK, TurnScan, skip_blank
from palaestra.formats.values import SPELLINGS, Typing, as_call, decode, dump, tool_names

EXAMPLE = '{"name": "tool", "parameters": {"argument": "value"}}'

_TAG = "<|python_tag|>"
_KEYS = frozenset({"type", "id", "name", *SPELLINGS})
MARKERS = re.compile(
    r"<\|python_tag\|>|<\|eo[tm]_id\|>"
    rf"|(?:^|(?P<behind>[;,]{BLANKS}|(?<=\}}))|(?<=</think>))[ \t]*+"
    rf"(?=\{{{BLANKS}\"(?:{'|'.join(sorted(_KEYS))})\"{BLANKS}:)"
    rf"|{THINK}",
    re.MULTILINE,
)
"""Pattern of the beginning of a call, of the ends of turns, and of thinking tags."""


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Return calls as the chat template writes them, without the tag."""
    return before_calls(content, "; ".join(map(_written, calls)))


def _written(call: ParsedCall) -> str:
    return dump({"name": call.name, "parameters": call.arguments})


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, tagged = turn.text, marker[0] == _TAG
    if marker[0].startswith("<") and not tagged:  # A token that ends the turn or message.
        return marker.end()
    follows = turn.end >= 0 and marker.start() <= skip_blank(text, turn.end)
    if marker["behind"] is not None and not follows:  # After other text nothing marks it as a call.
        end = max(marker.end(), marker.start() + 1)  # A marker may be empty.
        turn.content.append(text[marker.start() : end])
        return end
    begin = skip_blank(text, marker.end())
    if tagged and not text.startswith("{", begin):
        return turn.skip(turn.instead(f"a JSON object after {_TAG}", begin), begin)
    value, end, reason, lenient = decode(text, begin)
    if reason:
        return turn.skip(reason, end, begin=max(end, begin + 1))
    if not tagged and not _is_call(value, turn.tools):
        turn.content.append(text[marker.start() : end])
        return end
    call = as_call(value, lenient, "parameters")
    # The smaller of these models write every value as a string.
    turn.add(Typing(turn.tools, call.name).nested(call) if isinstance(call, ParsedCall) else call, begin)
    return end


def _is_call(value: dict[str, Any], tools: Schemas) -> bool:
    """Return whether a JSON object without the tag is a call, and not an answer, by its keys and the tools."""
    if "name" not in value or not _KEYS.issuperset(value):
        return False
    has_arguments = not value.keys().isdisjoint(SPELLINGS)
    return has_arguments or value.get("type") == "function" or value["name"] in tool_names(tools)


parse = Dialect(EXAMPLE, MARKERS, _read, _written).parse
