"""A call in another dialect's form is told, and only there: an answer stays an answer, whatever it looks like."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra import formats
from palaestra.formats import Fault, Parsed, ParsedCall


def schema(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (schema("search", query={"type": "string"}), schema("python", code={"type": "string"}), schema("now"))
CALL = '{"name": "search", "arguments": {"query": "a"}}'
EVERY = pytest.mark.parametrize("name", list(formats.FORMATS))

# What small models write where they should write their dialect, and the formats that read it as a call themselves.
WRONG = {
    f"Sure: {CALL}": (),
    CALL: ("llama3", "auto"),
    f"<think>which?</think>{CALL}": ("llama3", "auto"),
    f"<tools>\n{CALL}\n</tools>": ("llama3", "auto"),
    f"```json\n{CALL}\n```": ("llama3", "auto"),
    f"<tool_call>{CALL}</tool_call>": ("hermes", "auto"),
    f"[{CALL}, {CALL}]": (),
    '{"type": "function", "function": "search", "parameters": {"query": "a"}}': (),
    '{"function_call": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}': (),
    '[{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": {"query": "a"}}}]': (),
    'text\n{"tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]}': (),
    '<function=search>{"query": "a"}</function>': (),
    "<function=search>\n<parameter=query>\na\n</parameter>\n</function>": ("qwen3_coder", "auto"),
    '[search(query="a"), now()]': (),
    "I look.\n[now()]": (),
    'analysisI searchassistantcommentary to=functions.search json{"query": "a"}': (),
    "commentary to=functions.now json{}": (),
    '[TOOL_CALLS]search[ARGS]{"query": "a"}': ("mistral", "auto"),
    '<|tool_calls_begin|><|tool_call_begin|>search<|tool_sep|>{"query": "a"}<|tool_call_end|><|tool_calls_end|>': (),
    '<|tool_call_begin|>function<|tool_sep|>search\n```json\n{"query": "a"}\n```<|tool_call_end|>': (),
    "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a</arg_value>\n</tool_call>": ("glm", "auto"),
}

# What may look like a call, and is an answer in every format that finds no call of its own in it.
RIGHT = [
    '{"a": 1}', '{"tool": "search", "arguments": {}}', f'{{"plan": [{CALL}]}}', f'[{CALL}, {{"a": 1}}]',
    f"It is {CALL}.", f"I would say\n  `{CALL}`", f"<answer>{CALL}</answer>", CALL.replace("arguments", "inputs"),
    '[{"name": "Bob", "arguments": {"x": 1}}]', 'So {"name": "search", "arguments": ["x"]}',
    '[{"name": "search", "description": "finds", "parameters": {"type": "object"}}]',
    "[search(x) for x in y]", '[search("a")]', "\\boxed{search}", "$\\{search\\}$", "the tag `<find>`, and search",
    "I went to=search and found <b>it</b>", '```json\n{"search": [1, 2]}\n```', "def search():\n    return {}",
    f"{CALL}\nis how I would call search, and search gives [1]",
]  # fmt: skip


@EVERY
@pytest.mark.parametrize("text", list(WRONG))
def test_a_call_of_an_offered_tool_in_another_form_is_a_fault(name, text):
    calls = formats.get(name).parse(text, TOOLS).calls
    if name in WRONG[text]:
        assert all(isinstance(call, ParsedCall) for call in calls)
    assert [type(call) for call in calls if isinstance(call, Fault)] == [Fault] * (name not in WRONG[text])


@EVERY
@pytest.mark.parametrize("text", RIGHT)
def test_an_answer_that_looks_like_a_call_stays_an_answer(name, text):
    parsed = formats.get(name).parse(text, TOOLS)
    if name in ("llama3", "auto") and text.startswith('{"name"'):
        assert not any(isinstance(call, Fault) for call in parsed.calls)
    else:
        assert parsed.is_answer


@pytest.mark.parametrize("name", ["llama3", "harmony", "mistral", "deepseek", "tags", "fence", "openai"])
def test_what_calls_a_tool_that_is_not_offered_stays_an_answer(name):
    for text, readers in WRONG.items():
        if name not in readers:
            assert formats.get(name).parse(text).is_answer
            other = text.replace("search", "find").replace("now", "then")
            assert name == "llama3" or formats.get(name).parse(other, TOOLS).is_answer


def test_the_fault_names_the_tool_the_place_and_the_right_form():
    said = f"<think>{CALL}</think>Now: {CALL}"
    parsed = formats.get("hermes").parse(said, TOOLS)
    (fault,) = parsed.calls
    assert parsed.content == f"Now: {CALL}"
    assert fault.position == said.rindex(CALL)
    assert "a call of search" in fault.text
    assert f"at character {fault.position}" in fault.text
    assert formats.get("hermes").EXAMPLE in fault.text


def test_what_is_said_to_be_final_is_final():
    final = f"<|channel|>final<|message|>{CALL}<|return|>"
    assert formats.get("harmony").parse(final, TOOLS) == Parsed(CALL)
    assert formats.get("tags").parse(f"<answer>{CALL}", TOOLS) == Parsed(CALL)


PIECES = [
    "search", "now", CALL, "[", "]", "{", "}", '"', "`", "```", "<think>", "</think>", "<function=search>", "to=now ",
    "[search(query=1", ")]", "</function>", "<tools>", "</tools>", '{"function": ', '{"tool_calls": [', "\n", "<|x|>",
    "[" * 2000, '{"name": "search", "arguments": "{}"}', "\ud800", "<tool_call>now", '{"id":' * 500,
]  # fmt: skip
LONG = [
    *PIECES, '{"name":', '{"name": "search", ', "to=search", "<function=search>{", "[  ", "[{ ", f"{CALL} ", f"{CALL}x",
    "<function=search" + "x" * 50, "\n[search(a=1", "</x>",
]  # fmt: skip


@EVERY
def test_never_raises_and_every_place_is_in_the_turn(name):
    @given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
    @settings(max_examples=150, deadline=None)
    def holds(turn):
        for item in formats.get(name).parse(turn, TOOLS).calls:
            assert not isinstance(item, Fault) or (0 <= item.position <= len(turn) and "\n" not in item.text)

    holds()


def _seconds(turn):
    begun = time.process_time()
    formats.get("hermes").parse(turn, TOOLS)
    return time.process_time() - begun


@pytest.mark.parametrize("ending", ['search"}', "search]", "search>", "</function>", "[now()]", CALL])
@pytest.mark.parametrize("unit", LONG)
def test_work_grows_in_step_with_length(unit, ending):
    """Rule 11: forty times the text takes about forty times the work; quadratic would be 1600."""
    short, long = (unit * (size // len(unit)) + ending for size in (10_000, 400_000))
    least = min(_seconds(short) for _ in range(3))
    assert any(_seconds(long) < 40 * 8 * (least + 2e-5) for _ in range(5))
