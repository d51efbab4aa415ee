"""A call in another dialect's form is a fault, and only there: an answer stays an answer, whatever it looks like."""

import random
import re

import pytest
from format_helpers import grows_in_step, schema

from palaestra import formats
from palaestra.formats import CallParseError, Parsed, ParsedCall

TOOLS = (schema("search", query={"type": "string"}), schema("python", code={"type": "string"}), schema("now"))
CALL = '{"name": "search", "arguments": {"query": "a"}}'
INVOKE = '<{0}invoke name="search">\n<{0}parameter name="query">a</{0}parameter>\n</{0}invoke>'
PAIR = "<{0}arg_key>query</{0}arg_key><{0}arg_value>a</{0}arg_value>"
EVERY = pytest.mark.parametrize("name", list(formats.FORMATS))

# The forms in which the models of other families write a call, and the formats that read them as calls themselves.
WRONG = {
    # without tags
    f"Sure: {CALL}": (),
    CALL: ("llama3", "auto"),
    f"<think>which?</think>{CALL}": ("llama3", "auto"),
    f"<tools>\n{CALL}\n</tools>": ("llama3", "auto"),
    f"```json\n{CALL}\n```": ("llama3", "auto"),
    f"**Tool Call:**\n```json\n{CALL}\n```": ("llama3", "auto"),
    f"[{CALL}, {CALL}]": (),
    f"function call<|role_sep|>\n{CALL}": ("llama3", "auto"),
    f"functools[{CALL}]": (),
    '{"type": "function", "function": "search", "parameters": {"query": "a"}}': (),
    '{"function_call": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}': (),
    '[{"id": "call_1", "type": "function", "function": {"name": "search", "arguments": {"query": "a"}}}]': (),
    'text\n{"tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]}': (),
    '{"tool": "search", "arguments": {"query": "a"}}': (),
    'Action:\n```json\n{"action": "search", "action_input": "a"}\n```': (),
    'Action: ```json\n[\n{\n"tool_name": "search",\n"parameters": {"query": "a"}\n}\n]```': (),
    "Thought: I look.\nAction: search\nAction Input: who was Bado": (),
    "Action: now\nAction Input: {}\nObservation: 3\nFinal Answer: 3": (),
    '[search(query="a"), now()]': (),
    "I look.\n[now()]": (),
    '>>>search\n{"query": "a"}': (),
    '✿FUNCTION✿: search\n✿ARGS✿: {"query": "a"}': (),
    '```tool_code\nsearch(query="a")\n```': (),
    '```tool_code\nprint(default_api.search(query="a"))\n```': (),
    # special tokens that decoding has taken off
    'analysisI searchassistantcommentary to=functions.search json{"query": "a"}': (),
    "commentary to=functions.now json{}": (),
    'functions.search:0{"query": "a"}': (),
    'call:search{query:"a"}': (),
    '[{"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "a"}}]': (),
    # tags
    "<function=search>\n<parameter=query>\na\n</parameter>\n</function>": ("qwen3_coder", "auto"),
    f"<tool_call>{CALL}</tool_call>": ("hermes", "auto"),
    f"<tool_call>search{PAIR.format('')}</tool_call>": ("glm", "auto"),
    '<function=search>{"query": "a"}</function><|eom_id|>': (),
    f"<tool_calls>\n[{CALL}]\n</tool_calls>": (),
    f"<TOOLCALL>[{CALL}]</TOOLCALL>": (),
    f"<function_call> {CALL}": (),
    f"<function_calls>\n{INVOKE.format('')}\n</function_calls>": (),
    f"<minimax:tool_call>\n{INVOKE.format('')}\n</minimax:tool_call>\n\nI wait for the result.": (),
    f"<atem:function_calls>{INVOKE.format('atem:')}</atem:function_calls>": (),
    ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="search">]<]minimax[>[<query>a]<]minimax[>[</query>'
    "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>": (),
    '<function_calls>\nsearch(query="a")\nnow()\n</function_calls>': (),
    "<start_function_call>call:search{query:<escape>a<escape>}<end_function_call>": (),
    f"<longcat_tool_call>search\n{PAIR.format('longcat_')}\n</longcat_tool_call>": (),
    f"<ifm|tool_calls><ifm|tool_call>search{PAIR.format('ifm|')}</ifm|tool_call></ifm|tool_calls>": (),
    f"<tool_calls><tool_call>search<tool_sep>{PAIR.format('')}</tool_call></tool_calls>": (),
    '<function name="search"><param name="query">a</param></function>': (),
    "<tool: function>\nsearch a b\n</tool>": (),
    '<use_mcp_tool>\n<tool_name>search</tool_name>\n<arguments>{"query": "a"}</arguments>\n</use_mcp_tool>': (),
    "<think>hm</think>\n<search>who was Bado</search>": ("tags", "auto"),
    # special tokens
    '[TOOL_CALLS]search[ARGS]{"query": "a"}': ("mistral", "auto"),
    f"<｜DSML｜function_calls>\n{INVOKE.format('｜DSML｜')}\n</｜DSML｜function_calls>": (),
    '<｜DSML｜tool_calls><｜DSML｜invoke name="now"></｜DSML｜invoke></｜DSML｜tool_calls>': (),
    f"<｜GCML｜tool_calls>{INVOKE.format('｜GCML｜')}</｜GCML｜tool_calls></s>": (),
    '<|tool_calls_begin|><|tool_call_begin|>search<|tool_sep|>{"query": "a"}<|tool_call_end|><|tool_calls_end|>': (),
    '<|tool_call_begin|>function<|tool_sep|>search\n```json\n{"query": "a"}\n```<|tool_call_end|>': (),
    f"<｜tool_call_begin｜>function<｜tool_sep｜>{INVOKE.format('steptml:')}<｜tool_call_end｜>": (),
    '<|tool_call>call:search{query:<|"|>a<|"|>}<tool_call|>': (),
    '<|tool_call_start|>[search(query="a")]<|tool_call_end|>': (),
    '<|tool_call_start|>[search(query="a")]<|tool_call_end|>I look it up now.': (),
    '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "search", "parameters": {"query": "a"}}]<|END_ACTION|>': (),
    '<|python_start|>[search(query="a"), now()]<|python_end|>': (),
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"query": "a"}'
    "<|tool_call_end|><|tool_calls_section_end|>": (),
    '<|open|>tools<|sep|><|open|>call tool="search" index="0"<|sep|><|open|>argument key="query"<|sep|>a'
    "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>": (),
    f"<|tool_call|>[{CALL}]": (),
    f"<|action_start|><|plugin|>\n{CALL}<|action_end|>": ("llama3", "auto"),
    "<|tool_call:start|>search\n<|tool_arg:start|>query<|tool_arg:value|>a<|tool_arg:end|>\n<|tool_call:end|>": (),
    f"<|function_call|>{CALL}": (),
    '<|tools_prefix|>[{"search": {"query": "a"}}]<|tools_suffix|>': (),
    '<|plamo:begin_tool_name:plamo|>search<|plamo:end_tool_name:plamo|>{"query": "a"}<|plamo:end_tool:plamo|>': (),
    f"[unused11][{CALL}][unused12]": (),
    '<|from|>assistant\n<|recipient|>search\n<|content|>{"query": "a"}': (),
    'I run it.\n<|python_tag|>search.call(query="a")': (),
}

# What may look like a call, and is an answer in every format that finds no call of its own in it.
RIGHT = [
    '{"a": 1}', f'{{"plan": [{CALL}]}}', f'[{CALL}, {{"a": 1}}]', '{"search": {"query": "a"}}',
    f"It is {CALL}.", f"I would say\n  `{CALL}`", f"<answer>{CALL}</answer>", CALL.replace("arguments", "inputs"),
    '[{"name": "Bob", "arguments": {"x": 1}}]', 'So {"name": "search", "arguments": ["x"]}',
    '[{"name": "search", "description": "finds", "parameters": {"type": "object"}}]',
    "[search(x) for x in y]", '[search("a")]', "\\boxed{search}", "$\\{search\\}$", "the tag `<find>`, and search",
    "I went to=search and found <b>it</b>", '```json\n{"search": [1, 2]}\n```', "def search():\n    return {}",
    f"{CALL}\nis how I would call search, and search gives [1]", '{"name": "Alice"}', '{"name": "Alice", "id": 3}',
    "GLM writes <tool_call>search</tool_call>, others <function=search>, and Gemma call:search{}; none is used here.",
    "It prints [<function search at 0x7f1>, <function now at 0x7f2>]", "I used `<search>words</search>`. It is (5)",
    "```java\nList<Tool> search(Query q) {\n  return tools;\n}\n```",
    "```\n<tool_call>search</tool_call>\n```\nis how GLM writes it.",
    "```python\nfrom web import search\nprint(search(query='a'), now())\n```", 'if a <b: return search("x")',
    ">>> search('x')\n[1]", "<transaction>search</transaction>", '<form action="search"><input name="now"></form>',
    "<answer>\n<function_calls>\nsearch(query='a')\n</function_calls>\n</answer>",
    "<p>search</p>", "Action: I search, then answer (in one step)", "mail(to=search, body={})", "functions.search(1)",
    "The action: search the house; call: now (or never)", "std::function<search>",
    "a tooltip <tooltip>search</tooltip>",
    '```html\n<button onclick="search()">now</button>\n```', "<search> is an element of HTML, as <b>now</b> is",
]  # fmt: skip


@EVERY
def test_a_call_of_an_offered_tool_in_another_form_is_a_fault(name):
    for text, readers in WRONG.items():
        calls = formats.get(name).parse(text, TOOLS).calls
        if name in readers:
            assert calls
            assert all(isinstance(call, ParsedCall) for call in calls), text
        else:
            assert CallParseError in map(type, calls), text
            assert ParsedCall not in map(type, calls), text


@EVERY
def test_an_answer_that_looks_like_a_call_stays_an_answer(name):
    """In every dialect but those whose own marks it has; the loosest of them may read a call there."""
    own = {"hermes": "<tool_call>", "glm": "<tool_call>", "qwen3_coder": "<(tool_call|function)", "tags": "<search>",
           "auto": "<tool_call>|<search>"}  # fmt: skip
    for text in RIGHT:
        if name not in own or not re.search(own[name], text):
            kinds = [type(call) for call in formats.get(name).parse(text, TOOLS).calls]
            assert CallParseError not in kinds, text
            assert not kinds or name in ("llama3", "tags", "fence", "auto"), text


@pytest.mark.parametrize("name", ["llama3", "harmony", "mistral", "deepseek", "tags", "fence", "openai"])
def test_what_calls_a_tool_that_is_not_offered_stays_an_answer(name):
    for text, readers in WRONG.items():
        if name not in readers and not (name == "llama3" and "<|python_tag|>" in text):
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


def test_cuttings_and_mixes_of_all_dialects_never_raise_and_never_call_what_nobody_wrote():
    """Every form above, cut anywhere and joined with any other: calls come from the turn, faults point into it."""
    rng = random.Random(10)
    texts = [*WRONG, *RIGHT, *(formats.get(name).EXAMPLE for name in formats.FORMATS), "<think>", "</think>", "\ud800"]
    for _ in range(1500):
        pieces = [rng.choice(texts) for _ in range(rng.randint(1, 4))]
        turn = "".join(piece[: rng.randint(0, len(piece))] if rng.random() < 0.5 else piece for piece in pieces)
        for name in formats.FORMATS:
            for item in formats.get(name).parse(turn, TOOLS).calls:
                if isinstance(item, CallParseError):
                    assert 0 <= item.position <= len(turn), (name, turn)
                    assert "\n" not in item.text
                else:
                    assert item.name in turn or item.name == "python", (name, turn)


UNITS = [
    "search", CALL, "[", "{", '"', "`", "```", "<think>", "<function=search>", "to=now ", "[search(query=1", "</tools>",
    '{"tool_calls": [', "\n", "<|x|>", "\ud800", "<tool_call>now", '{"id":', "to=search", "<function=search>{", "[  ",
    f"{CALL}x", "<function=search" + "x" * 50, "\n[search(a=1", "<a", "<tool search", "_", "<tool_call>" + "x" * 59,
    "call:search{", "<tooltool", "<::", "Action: search\n", "functions.search:0{", "\n<search>", ")", "<tool_call>",
]  # fmt: skip


@pytest.mark.parametrize("ending", ['search"}', "search]", "</function>", CALL, "search"])
def test_work_grows_in_step_with_length(ending):
    for unit in UNITS:
        short, long = (unit * (size // len(unit)) + ending for size in (5_000, 200_000))
        assert grows_in_step(lambda turn: formats.get("hermes").parse(turn, TOOLS), short, long), unit
