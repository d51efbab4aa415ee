"""Values inside a call: JSON as models write it, and bare text that a tool's schema types.

JSON is decoded from its first character, so a closing tag inside a string does not end the call. Tolerated: raw
newlines in strings, trailing commas, `parameters` or `args` for the arguments, arguments as JSON inside a string. If a
schema asks for a list or an object, bare text may also have it in Python's syntax. Left out: every other repair
(missing brackets, single quotes in JSON). The agent is told of the fault and can try again.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from palaestra.errors import UsageError
from palaestra.formats.parsed import ParsedCall, Schemas
from palaestra.formats.scanning import plain_name, skip_blank

MAX_REPAIR = 20_000
"""Characters in which trailing commas are repaired; longer JSON must be exact."""
MAX_SCHEMA_DEPTH = 8
"""Maximum depth to which a schema is followed to find the types that it allows."""

SPELLINGS = ("arguments", "parameters", "args")
_HEAD = frozenset({"name", "id", "type", "index"})
# Strings, so that commas in them are passed over (closed or not: one that runs to the end must not be tried again at
# each of its quotes), and trailing commas.
_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"?|,(?=[ \t\r\n]*+[}\]])', re.DOTALL)
_KINDS: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"
}  # fmt: skip
_ALL = frozenset(_KINDS.values())
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NESTED = frozenset({"array", "object"})
# What Python writes in another way than JSON; a string that never ends runs to the end, as above.
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*+"?|\'((?:[^\'\\]|\\.)*+)\'?|\b(?:None|True|False)\b', re.DOTALL)
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_IN_JSON = {"None": "null", "True": "true", "False": "false", '"': '\\"', "\\'": "'"}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits[:20]} is too large a number")
    return value


# strict=False lets raw newlines stand inside strings: models write code that way.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite)


def decode(text: str, position: int) -> tuple[Any, int, str, bool]:
    """Return a JSON value, its end index, the reason of its fault ("" for none), and whether it was repaired."""
    if position >= len(text):
        return None, position, "the JSON is missing", False
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        if text[error.pos : error.pos + 1] in ("}", "]", ","):  # Where the decoder stops at a trailing comma.
            return _decode_repaired(text, position, error)
        return None, error.pos, f"not valid JSON: {error.msg}", False
    except RecursionError:
        return None, position, "the JSON is nested too deeply", False
    except ValueError as error:  # Integers of thousands of digits, NaN.
        return None, position, f"not valid JSON: {str(error).split(';')[0]}", False
    return value, end, "", False


def _decode_repaired(text: str, position: int, error: json.JSONDecodeError) -> tuple[Any, int, str, bool]:
    """Decode again without trailing commas: blanks replace them, so that positions stay."""
    wrong = None, error.pos, f"not valid JSON: {error.msg}", False
    window = text[position : position + MAX_REPAIR]
    repaired = _COMMA.sub(lambda found: " " if found[0] == "," else found[0], window)
    if repaired == window:
        return wrong
    try:
        value, end = _DECODER.raw_decode(repaired)
    except (ValueError, RecursionError):
        return wrong
    return value, position + end, "", True


def as_call(value: Any, lenient: bool = False, spelling: str = "arguments") -> ParsedCall | str:
    """Return the call that an object holds, or the reason why it is none. `spelling` is the dialect's key."""
    if not isinstance(value, dict):
        return "the JSON is not an object"
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return '"name" must be a non-empty string'
    key = spelling if spelling in value else next((key for key in SPELLINGS if key in value), "")
    if not key and not _HEAD.issuperset(value):
        return f'the arguments stand beside "name"; put them into "{spelling}": {{...}}'
    return with_arguments(name, value.get(key), lenient or key != spelling)


def with_arguments(name: str, arguments: Any, lenient: bool = False) -> ParsedCall | str:
    """Return a call of `name`. None means no arguments; JSON inside a string is decoded once."""
    if isinstance(arguments, dict):
        return ParsedCall(name, arguments, lenient)
    if isinstance(arguments, str):
        inner = arguments
        arguments, end, reason, _ = decode(inner, skip_blank(inner, 0))
        if reason or skip_blank(inner, end) != len(inner):
            return f"the arguments are a string that is not JSON ({reason or 'text after it'})"
        lenient = True
    if arguments is None:
        return ParsedCall(name, {}, True)
    if not isinstance(arguments, dict):
        return "the arguments must be an object"
    return ParsedCall(name, arguments, lenient)


def dump(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def bare(value: Any) -> str:
    """Return a value as bare text: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else dump(value)


class BareText:
    """Values in a dialect without escapes: written as they are, between two tags.

    A value ends at the first closing tag that another argument, the end of the call or the end of the turn follows. If
    another value is opened but not closed inside it, the value has no end: its own closing tag is missing, and it would
    include the arguments after it.
    """

    def __init__(self, dialect: str, head: str, key: str, opener: str, closer: str, ends: str, tail: str = "") -> None:
        """`head` is written before a value and `tail` after it. `key` is a pattern for a head as models write it, with
        the argument's name as its group; `ends` is a pattern for what may follow a value.
        """
        self.dialect, self.head, self.opener, self.closer, self.tail = dialect, head, opener, closer, tail
        self._key = re.compile(key)
        self._end = re.compile(rf"{tail and tail + '?'}{closer}(?=[ \t\r\n]*+(?:{ends}|\Z))")

    def arguments(self, text: str, position: int, typing: "Typing") -> tuple[dict[str, Any], int, str]:
        """Read arguments from `position`. Return them, the index where they end, and the key whose value has no end (""
        if there is none).
        """
        arguments: dict[str, Any] = {}
        while key := self._key.match(text, position):
            value = self._value(text, key.end())
            if value is None:
                return arguments, key.end(), key[1]
            arguments[key[1]] = typing.read(key[1], value[0])
            position = skip_blank(text, value[1])
        return arguments, position, ""

    def _value(self, text: str, position: int) -> tuple[str, int] | None:
        """Return the value that begins at `position`, and the index after its closing tag; None if it has no end."""
        match = self._end.search(text, position)
        value = text[position : match.start()] if match else ""
        return (value, match.end()) if match and value.count(self.opener) <= value.count(self.closer) else None

    def written(self, key: str, value: Any) -> str:
        """Return an argument as text. Raise a UsageError if it would not be read back unchanged."""
        text = bare(value)
        whole = text + self.tail + self.closer
        if self._value(whole, 0) != (text, len(whole)):
            raise UsageError(
                f"argument {key!r} contains {self.opener} or {self.closer}, "
                f"which the {self.dialect} format cannot write; use hermes"
            )
        return self.head.format(plain_name(key, self.dialect)) + whole


def tool_names(tools: Schemas) -> tuple[str, ...]:
    """Return the names of the tools in the schemas."""
    return tuple(tool["function"]["name"] for tool in tools)


def code_tool(tools: Schemas) -> str:
    """Return the tool that runs bare Python: the one named `python`, or the first that takes `code`; "" for none."""
    names = tool_names(tools)
    if not names or "python" in names:
        return "python"
    return next((name for name in names if "code" in Typing(tools, name).properties), "")


def _as_json(literal: "re.Match[str]") -> str:
    """Return a Python string or constant as JSON."""
    if literal[1] is None:
        return _IN_JSON.get(literal[0], literal[0])
    inner = _QUOTE.sub(lambda found: _IN_JSON.get(found[0], found[0]), literal[1])
    return f'"{inner}"'


class Typing:
    """Types of one tool's arguments, from the schemas."""

    def __init__(self, tools: Schemas, name: str) -> None:
        self.name = name
        function = next((tool["function"] for tool in tools if tool["function"]["name"] == name), None)
        self.offered = function is not None
        self.parameters: Mapping[str, Any] = (function or {}).get("parameters") or {}
        self.properties: Mapping[str, Any] = self.parameters.get("properties") or {}

    @property
    def main(self) -> str:
        """Argument that bare text sets: the first required one, or the first of all; "" for none."""
        required = self.parameters.get("required") or ()
        return next((key for key in self.properties if key in required), next(iter(self.properties), ""))

    def read(self, key: str, text: str) -> Any:
        """Return the value that bare text has by the argument's schema. If the argument is unknown or the text does not
        fit, return the text: the later check of the arguments reports such faults better."""
        if key not in self.properties:
            return text
        kinds = self._kinds(self.properties[key], 0, set()) or _ALL
        word = text.strip()
        if "null" in kinds and word in ("null", "None"):
            return None
        if "boolean" in kinds and word in _WORDS:
            return _WORDS[word]
        if kinds <= {"string", "null"}:
            return text
        value, end, reason, _ = decode(word, 0)
        if reason and kinds & _NESTED and "string" not in kinds and word[:1] in ("[", "{"):
            word = _LITERAL.sub(_as_json, word)
            value, end, reason, _ = decode(word, 0)
        if reason or end != len(word) or isinstance(value, str):
            return text
        kind = _KINDS[type(value)]
        return value if kind in kinds or (kind == "integer" and "number" in kinds) else text

    def nested(self, call: ParsedCall) -> ParsedCall:
        """Return the call with its text arguments decoded where the text is a list or an object, and the schema allows
        no text there."""
        read = {
            key: self.read(key, value)
            for key, value in call.arguments.items()
            if isinstance(value, str)
            and value.lstrip()[:1] in ("[", "{")
            and "string" not in (self._kinds(self.properties.get(key), 0, set()) or _ALL)
        }
        return ParsedCall(call.name, call.arguments | read, True) if read else call

    def _kinds(self, schema: Any, depth: int, visited: set[str]) -> frozenset[str]:
        """Return the JSON types that a schema allows; all if it names none. A reference in `visited` gives no types:
        each is followed once, since following all paths through nested references would take too long."""
        if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
            return _ALL
        if "$ref" in schema:
            definitions, name = self.parameters.get("$defs") or {}, str(schema["$ref"]).rpartition("/")[2]
            if name in visited:
                return frozenset()
            visited.add(name)
            return self._kinds(definitions.get(name), depth + 1, visited)
        if "type" in schema:
            kinds = schema["type"]
            return frozenset([kinds] if isinstance(kinds, str) else kinds)
        if "enum" in schema or "const" in schema:
            return frozenset(_KINDS.get(type(value), "object") for value in schema.get("enum", [schema.get("const")]))
        choices = [choice for key in ("anyOf", "oneOf", "allOf") for choice in schema.get(key, ())]
        return frozenset().union(*(self._kinds(choice, depth + 1, visited) for choice in choices)) if choices else _ALL
