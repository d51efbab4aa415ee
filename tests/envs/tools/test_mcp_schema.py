"""Schemas of strangers: common mistakes are named, and no schema makes a check long."""

import re
from functools import reduce

import pytest

from palaestra.envs.tools.mcp_schema import MAX_CHARS, GivenSchema
from palaestra.errors import ToolError, UsageError
from palaestra.formats.values import Typing

LEVELS = 40


def of(a, **more):
    return {"type": "object", "properties": {"a": a}, **more}


def levels(form, width=2):
    """Each definition names the next one twice: so many ways lead to the last one as 2 to the power of `LEVELS`."""
    names = {f"d{level}": {form: [{"$ref": f"#/$defs/d{level + 1}"}] * width} for level in range(LEVELS)}
    return of({"$ref": "#/$defs/d0"}, **{"$defs": names | {f"d{LEVELS}": {"type": "string"}}})


LONG = {
    "a pattern that goes back and forth": (of({"pattern": "^(a+)+$"}), "a" * 60 + "!"),
    "a pattern of names": (of({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}), {"a" * 60: 1}),
    "levels of allOf": (levels("allOf"), "x"),
    "levels of oneOf": (levels("oneOf"), 5),
    "a definition of itself": (levels("anyOf") | {"$defs": {"d0": {"$ref": "#/$defs/d0"}}}, 5),
    "a definition of itself twice": (of({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}), {"a": {"a": {}}}),
    "items that must differ": (of({"type": "array", "uniqueItems": True}), [{"b": [n]} for n in range(20_000)]),
    "many choices for many items": (of({"items": {"enum": [*range(10_000)]}}), [9_999] * 100_000),
    "many forms for many items": (of({"items": {"anyOf": [{"const": -1}] * 4_000 + [True]}}), [*range(100_000)]),
    "a format": (of({"format": "regex"}), "(" * 5_000),
}


@pytest.mark.parametrize("name", LONG)
def test_no_schema_makes_a_check_long_and_what_is_not_checked_is_left_to_the_server(name):
    schema, value = LONG[name]
    given = {"a": value}
    assert GivenSchema("x", schema).read(given) is given


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "string"}, 5, "a: expected string"),
        ({"type": ["string", "null"]}, 5, "a: expected string or null"),
        ({"type": "integer"}, True, "a: expected integer"),
        ({"type": "integer"}, 2.5, "a: expected integer"),
        ({"type": "integer"}, 2.0, ""),
        ({"type": "unheard-of"}, 5, ""),
        ({"enum": ["red", 1]}, True, "a: expected one of 'red', 1"),
        ({"const": "red"}, "blue", "a: expected one of 'red'"),
        ({"minimum": 3, "type": "number"}, 2, "a: minimum is 3"),
        ({"exclusiveMaximum": 3}, 3, "a: exclusiveMaximum is 3"),
        ({"maxLength": 2}, "abc", "a: maxLength is 2"),
        ({"minItems": 1}, [], "a: minItems is 1"),
        ({"items": {"type": "string"}}, ["b", 5], "a.1: expected string"),
        ({"required": ["b"]}, {}, "a.b: missing"),
        ({"properties": {"b": {}}, "additionalProperties": False}, {"c": 1}, "a.c: unknown; known: 'b'"),
        ({"additionalProperties": {"type": "string"}}, {"c": 1}, "a.c: expected string"),
        ({"properties": {"c": False}}, {"c": 1}, "a.c: not allowed"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, "a: fits none of the 2 forms that it may have"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, ""),
        ({"oneOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "ab", ""),
        ({"allOf": [{"type": "object"}, {"required": ["b"]}]}, {}, "a.b: missing"),
        ({"$ref": "#/$defs/tree"}, {"of": [{"of": [{"of": 5}]}]}, "a.of.0.of.0.of: expected array"),
        ({"$ref": "#/definitions/none"}, 5, ""),
    ],
)
def test_a_mistake_in_arguments_is_named_with_its_place(schema, value, fault):
    tree = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    check = GivenSchema("x", of(schema, **{"$defs": {"tree": tree}}))
    if not fault:
        assert check.read({"a": value}) == {"a": value}
        return
    with pytest.raises(ToolError, match=f"^{re.escape(fault)}$"):
        check.read({"a": value})


def nested(depth):
    return reduce(lambda schema, _: {"anyOf": [schema]}, range(depth), {})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (of({"enum": ["x" * MAX_CHARS]}), "characters"),
        (of(nested(2_000)), "nested too deeply"),
        ({"properties": []}, "`properties` is"),
        ({"required": [{}]}, "hold names"),
        ({"type": [[]]}, "hold names"),
        (of({"anyOf": {}}), "`anyOf` is"),
        (of({"items": {"enum": 5}}), "`enum` is"),
        (of(5), "expected an object"),
    ],
)
def test_a_tool_whose_schema_no_agent_can_be_shown_is_refused_when_the_environment_opens(schema, reason):
    with pytest.raises(UsageError, match=f"'x' has a schema.*{reason}.*`allow`"):
        GivenSchema("x", schema)


def test_types_are_found_in_a_schema_whose_references_multiply():
    wide = [{"$ref": f"#/$defs/d{number}"} for number in range(40)]
    parameters = of({"$ref": "#/$defs/d0"}, **{"$defs": {f"d{number}": {"anyOf": wide} for number in range(40)}})
    tools = [{"function": {"name": "x", "parameters": parameters}}]
    assert Typing(tools, "x").read("a", "5") == 5
