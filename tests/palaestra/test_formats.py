"""What holds for every call format: it reads back what it writes, never raises, stays linear,
and answers are answers.

The rules are tested over all formats with one call that each of them can write; what only one dialect has is in
test_format_cases.py.
"""

from functools import partial

import pytest
from format_helpers import grows_in_step, schema
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import UsageError, formats
from palaestra.formats import CallParseError, Parsed, ParsedCall
from palaestra.formats.scanning import MAX_CALLS
from palaestra.formats.values import MAX_REPAIR

TOOLS = (
    schema("search", ["query"], query={"type": "string"}),
    schema("python", ["code"], code={"type": "string"}),
    schema(
        "mixed",
        ["count"],
        count={"type": "integer"},
        ratio={"type": "number"},
        flag={"type": "boolean"},
        items={"type": "array", "items": {}},
        table={"type": "object"},
        note={"anyOf": [{"type": "string"}, {"type": "null"}]},
        anything={},
        shape={"$ref": "#/$defs/Shape"},
    ),
    schema("nothing", []),
)
CALL = ParsedCall("python", {"code": "print(1)"})
EVERY = pytest.mark.parametrize("name", list(formats.FORMATS))
JSON_CLOSED = ["hermes", "qwen3_coder", "llama3", "harmony", "mistral", "deepseek", "auto"]
"""Formats that can show that a call is complete before its last tag."""
CLOSERS = {"hermes": "</tool_call>", "qwen3_coder": "\n</tool_call>", "harmony": "<|call|>", "auto": "</tool_call>",
           "deepseek": "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "glm": "</tool_call>", "tags": "</python>",
           "fence": "```", "openai": "]}"}  # fmt: skip
FIRST = {"hermes": "<tool_call>", "qwen3_coder": "<tool_call>\n<function=", "glm": "<tool_call>",
"llama3": '{"name":',
         "harmony": "<|channel|>commentary to=functions.python", "mistral": "[TOOL_CALLS]",
         "deepseek": "<｜tool▁call▁begin｜>", "tags": "<python>",
         "fence": "```python\n", "auto": "<tool_call>", "openai": '{"role": "assistant", "tool_calls":'}  # fmt: skip

strings = st.text(st.characters(codec=None), max_size=30)
marks = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "a", "arguments": {}}',
    '{"name":', "{", "}", '"',
     "]", "\\", "\n", " ", "x", "[" * 2000, "9" * 5000, '{"name": "a", "arguments": "{}"}', "NaN", "\ud800", "1e999",
     ",", "<function=", "<function=a>", "<parameter=a>", "</parameter>", "</function>", "<|python_tag|>", ";",
     "<|eot_id|>", "<|channel|>", "<|message|>", "<|start|>assistant", "analysis", "final",
     "commentary", " to=functions.a",
     "<|call|>", "<|end|>", "<|return|>", "<|constrain|>json", "[TOOL_CALLS]", "[ARGS]",
     "[CALL_ID]", "[THINK]", "[/THINK]", "a",
     "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json", "```",
     "```python\n", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<search>",
     "</search>", "<python>", "</python>",
     "<answer>", "</answer>", "<code>", "</code>", '{"role": "assistant", "tool_calls": [', '"function": {']
)  # fmt: skip
hostile = strings | st.lists(marks, max_size=16).map("".join)
numbers = st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | numbers
json_values = st.recursive(
    plain | hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
mixed = st.fixed_dictionaries(
    {"count": st.integers(-(10**18), 10**18)},
    optional={
        "ratio": numbers,
        "flag": st.booleans(),
        "items": st.lists(json_values, max_size=3),
        "table": st.dictionaries(strings, json_values, max_size=3),
        "note": st.none() | hostile.filter(lambda said: said.strip() not in ("null", "None")),
        "anything": plain | st.lists(json_values, max_size=2),
    },
)
code_calls = st.builds(lambda code: ParsedCall("python", {"code": code}), hostile)
calls = (
    code_calls
    | st.builds(lambda query: ParsedCall("search", {"query": query}), hostile)
    | st.builds(lambda arguments: ParsedCall("mixed", arguments), mixed)
    | st.just(ParsedCall("nothing", {}))
)


@EVERY
def test_reads_back_what_it_writes(name):
    form = formats.get(name)

    @given(st.lists(code_calls if name == "fence" else calls, max_size=4))
    @settings(max_examples=120, deadline=None)
    def holds(written):
        try:
            text = form.render(written)
        except UsageError:  # Only where a dialect has no escapes and the value holds its own tags.
            tag = {"qwen3_coder": "parameter", "glm": "arg_value"}[name]
            assert any(tag in str(call.arguments) for call in written)
            return
        parsed = form.parse(text, TOOLS)
        assert list(parsed.calls) == written
        assert not any(call.lenient for call in parsed.calls if call.arguments)
        assert parsed.content == ""

    holds()


@EVERY
def test_reads_back_what_is_said_before_the_calls(name):
    form = formats.get(name)
    for content in ("I look it up.", "two\nlines", "x", "1 < 2; {so} [it] is"):
        assert form.parse(form.render([], content), TOOLS) == Parsed(content)
        assert form.parse(form.render([CALL, CALL], content), TOOLS) == Parsed(content, (CALL, CALL))


@EVERY
def test_f15_never_raises_and_faults_teach(name):
    form = formats.get(name)
    examples = {formats.get(other).EXAMPLE for other in formats.FORMATS} if name == "auto" else {form.EXAMPLE}

    @given(hostile, st.sampled_from([(), TOOLS]))
    @settings(max_examples=200, deadline=None)
    def holds(turn, tools):
        parsed = form.parse(turn, tools)
        assert parsed.is_answer == (len(parsed.calls) == 0)
        assert len(parsed.calls) <= MAX_CALLS + 1
        assert form.parse(turn, tools) == parsed
        for item in parsed.calls:
            assert isinstance(item, ParsedCall | CallParseError)
            if isinstance(item, CallParseError):
                assert 0 <= item.position <= len(turn)
                assert f"at character {item.position}" in item.text
                assert any(example in item.text for example in examples)
                assert len(item.text) < 400
                assert "\n" not in item.text

    holds()


@EVERY
def test_a_fault_shows_the_dialects_own_form(name):
    """Rule 1: what is wrong, where, and how it is written rightly; and it is no answer."""
    parsed = formats.get(name).parse(FIRST[name], TOOLS)
    (fault,) = parsed.calls
    assert isinstance(fault, CallParseError)
    assert formats.get(name).EXAMPLE in fault.text
    assert not parsed.is_answer


@pytest.mark.parametrize("name", [name for name in formats.FORMATS if name != "fence"])  # A fence takes three lines.
def test_the_example_is_read_by_its_own_format(name):
    (call,) = formats.get(name).parse(formats.get(name).EXAMPLE).calls
    assert isinstance(call, ParsedCall)
    assert not call.lenient


@pytest.mark.parametrize("name", sorted(CLOSERS))
def test_a_call_without_its_closing_tag_counts_only_if_provably_complete(name):
    """Rule 3: and then it is marked, except where the closing tag is what stops the engine anyway."""
    form = formats.get(name)
    text = form.render([CALL])
    assert text.endswith(CLOSERS[name])
    (found,) = form.parse(text.removesuffix(CLOSERS[name]), TOOLS).calls
    if name in JSON_CLOSED:
        assert found == CALL
        assert found.lenient == (name != "harmony")
    else:
        assert isinstance(found, CallParseError)


@EVERY
def test_a_call_cut_anywhere_is_never_another_call(name):
    """Rule 3 again: whatever the cut leaves, it is the same call, a fault, or (before the call began) no call."""
    form = formats.get(name)
    text = form.render([ParsedCall("python", {"code": "print(12345)"})])
    for end in range(len(text)):
        for item in form.parse(text[:end], TOOLS).calls:
            assert isinstance(item, CallParseError) or item == ParsedCall("python", {"code": "print(12345)"})


@EVERY
def test_text_behind_the_last_call_changes_no_call(name):
    """Rule 4."""
    form = formats.get(name)
    assert form.parse(form.render([CALL]) + "\nand so on", TOOLS).calls == (CALL,)


@EVERY
def test_f15_thinking_is_never_read_for_calls(name):
    """Rule 5: closed, unclosed, and opened by the template."""
    form = formats.get(name)
    call = form.render([CALL])
    assert form.parse(f"<think>\n{call}\n</think> 42 ", TOOLS) == Parsed("42")
    assert form.parse(f"42<think>\n{call}", TOOLS) == Parsed("42")
    assert form.parse(f"{call}\n</think>42", TOOLS) == Parsed("42")
    assert form.parse(f"<think>{FIRST[name]}</think>{call}", TOOLS) == Parsed("", (CALL,))
    assert form.parse(f"hm</think>{call}", TOOLS) == Parsed("", (CALL,))
    assert form.parse("<think>only thought", TOOLS) == Parsed("")


@pytest.mark.parametrize("name", ["hermes", "llama3", "openai", "auto", "mistral"])
@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('"arguments": "{\\"a\\": 1}"', {"a": 1}),
        ('"parameters": {"a": 1}', {"a": 1}),
        ('"args": {"a": 1}', {"a": 1}),
        ('"arguments": null', {}),
        ('"type": "function"', {}),
    ],
)
def test_spellings_of_arguments(name, body, arguments):
    """Rules 6 and 7, where the name is in the JSON too."""
    written = f'{{"name": "p", {body}}}'
    text = {
        "hermes": f"<tool_call>{written}</tool_call>",
        "auto": f"<tool_call>{written}</tool_call>",
        "llama3": written,
        "openai": f'{{"role": "assistant", "tool_calls": [{{"function": {written}}}]}}',
        "mistral": f"[TOOL_CALLS] [{written}]",
    }[name]
    assert formats.get(name).parse(text).calls == (ParsedCall("p", arguments),)


@pytest.mark.parametrize("name", ["hermes", "llama3", "harmony", "mistral", "deepseek", "tags", "auto"])
def test_json_is_read_with_trailing_commas_and_raw_newlines_and_marked(name):
    """Rule 7: tolerated in an episode, visible to a reward that teaches form."""
    form = formats.get(name)
    call = ParsedCall("mixed", {"count": 1, "note": 'a,}"]', "items": [1, [2]]})
    text = form.render([call])
    loose = text.replace("[2]]", "[2 , ],\n]")
    (found,) = form.parse(loose, TOOLS).calls
    assert found == call
    assert found.lenient
    raw = text.replace("a,}", "a\n,}")
    assert form.parse(raw, TOOLS).calls == (ParsedCall("mixed", call.arguments | {"note": 'a\n,}"]'}),)


@EVERY
def test_f15_calls_in_a_turn_are_capped(name):
    """Rule 10."""
    form = formats.get(name)
    parsed = form.parse(form.render([CALL] * 100), TOOLS)
    assert list(parsed.calls[:-1]) == [CALL] * MAX_CALLS
    assert isinstance(parsed.calls[-1], CallParseError)
    assert str(MAX_CALLS) in parsed.calls[-1].text


UNITS = {
    "hermes": ["<tool_call>", "</tool_call>", '<tool_call>{"a":"', "<tool_call>[",
               '<tool_call>"\\', "<tool_call>[1,]",
               '<tool_call>[1,]"\\"', '<tool_call>{"name": "a"}</tool_call>', "<tool_call>\n"],
    "qwen3_coder": ["<tool_call>", "<function=", "<tool_call><function=a><parameter=b>",
                    "<function=a>", "</parameter>\n",
                    "<tool_call><function=a><parameter=b>\n</parameter>  "],
    "llama3": ["<|python_tag|>", '\n{"name":', ";", '\n{"name": "', "{\n", '{"name":[', "\n  ", ";{"],
    "harmony": ["<|channel|>", "<|start|>", "<|message|>", "<|channel|>commentary to=functions.a", "<|call|>",
                '<|channel|>commentary to=functions.a<|message|>{"', "<|channel|>analysis<|message|>", " to=a"],
    "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]a[ARGS]", '[TOOL_CALLS]a[ARGS]{"', "[THINK]", "["],
    "deepseek": ["<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>a",
                 "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{", "<｜tool▁sep｜>",
                 "<｜tool▁call▁begin｜>a<｜tool▁sep｜>b```json\n", "<｜tool▁call▁end｜>"],
    "glm": ["<tool_call>a", "<tool_call>a<arg_key>b</arg_key><arg_value>", "<arg_key>",
            "</arg_value>  ", "<tool_call> ",
            "<arg_key>a</arg_key><arg_value></arg_value>"],
    "tags": ["<search>", "</search>", "<search>{", '<search>{"', "<answer>", "</answer>", "<code>```\n"],
    "fence": ["```python\n", "```\n", "`", "```python\n```\n", "````python\n```\n", "```py"],
    "openai": ['{"role":', '{"role": "assistant", "tool_calls": [', "[", "{", '"tool_calls"', "\n"],
    "auto": ["<tool_call>", "```python\n", "<search>", "\n{\"name\":", "<|channel|>", "[TOOL_CALLS]", "\n"],
}  # fmt: skip
COMMON = ["<think>", "</think>", "<think></think>", " <", '"', "\\", "{", " ", "x"]


@EVERY
def test_work_grows_in_step_with_length(name):
    """Rule 11."""
    parse = partial(formats.get(name).parse, tools=TOOLS)
    for unit in [*UNITS[name], *COMMON]:
        short, long = (unit * (size // len(unit)) for size in (5_000, 200_000))
        assert grows_in_step(parse, short, long), unit
        opened = FIRST[name]  # One opening tag with the repetition behind it.
        assert grows_in_step(parse, opened + short, opened + long), unit


@EVERY
def test_an_answer_is_a_turn_without_call_and_fault(name):
    """Rule 12."""
    form = formats.get(name)
    for text in ("42", "", 'It is {1, 2} or [3], or "x", or 1 < 2.', '{"a": 1}', "```json\n{}\n```", "# `x`"):
        assert form.parse(text, TOOLS) == Parsed(text)
    assert not form.parse(form.render([CALL]), TOOLS).is_answer


@EVERY
def test_a_format_needs_no_schemas(name):
    form = formats.get(name)
    assert form.parse(form.render([CALL])).calls == (CALL,)


def test_commas_are_forgiven_in_short_json_only():
    def turn(padding):
        return f'<tool_call>{{"name": "p", "arguments": {{"a": "{padding}",}}}}</tool_call>'

    hermes = formats.get("hermes")
    assert isinstance(hermes.parse(turn("x")).calls[0], ParsedCall)
    assert isinstance(hermes.parse(turn("x" * MAX_REPAIR)).calls[0], CallParseError)
