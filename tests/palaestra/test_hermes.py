"""The hermes format: reads back what it writes, never raises, and cannot be fooled."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import ConfigError, formats
from palaestra.formats import Fault, ParsedCall, hermes
from palaestra.formats.scanning import MAX_CALLS

text = st.text(st.characters(codec=None))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
calls = st.builds(ParsedCall, text.filter(bool), st.dictionaries(text, values, max_size=4))
pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "a", "arguments": {}}', '{"name":', "{", "}", '"',
     "\\", "\n", " ", "x", "[" * 2000, "9" * 5000, '{"name": "a", "arguments": "{}"}', "NaN", "\ud800"]
)  # fmt: skip


@given(st.lists(calls, max_size=5))
def test_reads_back_what_it_writes(written):
    parsed = hermes.parse(hermes.render(written))
    assert list(parsed.calls) == written
    assert parsed.content == ""


@given(text | st.lists(pieces, max_size=20).map("".join))
@settings(max_examples=300)
def test_never_raises_and_every_turn_is_an_answer_or_has_calls(turn):
    parsed = hermes.parse(turn)
    assert parsed.is_answer == (len(parsed.calls) == 0)
    for item in parsed.calls:
        assert isinstance(item, ParsedCall | Fault)
        if isinstance(item, Fault):
            assert 0 <= item.position <= len(turn)
            assert "<tool_call>" in item.text
            assert len(item.text) < 400


@given(text.filter(lambda said: "<t" not in said and "</t" not in said), st.lists(calls, min_size=1, max_size=3))
def test_text_around_calls_is_content(said, written):
    parsed = hermes.parse(said + hermes.render(written) + said)
    assert [item for item in parsed.calls if isinstance(item, ParsedCall)] == written


def test_closing_tag_inside_a_string_ends_nothing():
    call = ParsedCall("python", {"code": 'print("</tool_call><tool_call><think>")'})
    assert hermes.parse(hermes.render([call, call])).calls == (call, call)


def test_raw_newlines_in_strings_are_read():
    assert hermes.parse('<tool_call>{"name": "p", "arguments": {"code": "a\nb"}}</tool_call>').calls == (
        ParsedCall("p", {"code": "a\nb"}),
    )


def test_unclosed_last_call_counts_when_its_json_is_complete():
    assert hermes.parse('so <tool_call>{"name": "p"}\n').calls == (ParsedCall("p", {}),)
    cut = hermes.parse('so <tool_call>{"name": "p", "argu').calls
    assert isinstance(cut[0], Fault)
    assert len(cut) == 1


def test_calls_in_thinking_are_ignored():
    call = '<tool_call>{"name": "p"}</tool_call>'
    assert hermes.parse(f"<think>{call}</think> 42 ") == formats.Parsed("42")
    assert hermes.parse(f"42<think>{call}") == formats.Parsed("42")
    assert hermes.parse(f"prefilled {call}</think>42") == formats.Parsed("42")


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('"arguments": "{\\"a\\": 1}"', {"a": 1}),
        ('"parameters": {"a": 1}', {"a": 1}),
        ('"args": {"a": 1}', {"a": 1}),
        ('"arguments": null', {}),
    ],
)
def test_spellings_of_arguments(body, arguments):
    assert hermes.parse(f'<tool_call>{{"name": "p", {body}}}</tool_call>').calls == (ParsedCall("p", arguments),)


@pytest.mark.parametrize(
    "body",
    ['{"name": ""}', '{"name": 3}', "[]", '{"name": "p", "arguments": [1]}', '{"name": "p", "arguments": "[1"}', "{",
     '{"name": "p", "arguments": "\\"{}\\""}', '{"name": "p"} x', '{"name": "p", "arguments": {"a": NaN}}', ""],
)  # fmt: skip
def test_faults_say_where_and_how(body):
    (fault,) = hermes.parse(f"ab<tool_call>{body}</tool_call>").calls
    assert isinstance(fault, Fault)
    assert f"at character {fault.position}" in fault.text
    assert hermes.EXAMPLE in fault.text
    assert fault.position >= 13


def test_a_fault_does_not_hide_the_calls_around_it():
    good = '<tool_call>{"name": "p"}</tool_call>'
    kinds = [type(item) for item in hermes.parse(f"{good}<tool_call>{{</tool_call>{good}<tool_call>{good}").calls]
    assert kinds == [ParsedCall, Fault, ParsedCall, Fault, ParsedCall]
    assert [type(item) for item in hermes.parse("x</tool_call>").calls] == [Fault]


def test_blocks_are_capped():
    parsed = hermes.parse('<tool_call>{"name": "p"}</tool_call>' * 100)
    assert len(parsed.calls) == MAX_CALLS + 1
    assert isinstance(parsed.calls[-1], Fault)


def test_unknown_format_names_the_closest():
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        formats.get("hermess")


def test_rendered_calls_are_json():
    rendered = hermes.render([ParsedCall("p", {"a": "é"})])
    assert json.loads(rendered.removeprefix("<tool_call>").removesuffix("</tool_call>"))["arguments"] == {"a": "é"}
