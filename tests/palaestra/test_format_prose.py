"""Turns as models really write them: calls beside prose that speaks of calls, in lists, and with loose values."""

import pytest

from palaestra import formats
from palaestra.formats import Fault, Parsed, ParsedCall


def schema(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


PYTHON = schema("python", code={"type": "string"})
SEARCH = schema("search", query={"type": "string"})
ADD = schema(
    "add",
    items={"type": "array"},
    table={"type": "object"},
    count={"type": "integer"},
    either={"anyOf": [{"type": "array"}, {"type": "string"}]},
)
TOOLS = (SEARCH, PYTHON, ADD, schema("now"))


def parse(name, text):
    return formats.get(name).parse(text, TOOLS)


def code(text):
    return (ParsedCall("python", {"code": text}),)


@pytest.mark.parametrize("name", ["fence", "auto"])
def test_a_block_in_a_list_is_run_without_its_indent(name):
    text = "1. First:\n   ```python\n   if x:\n\n       y\n  z\n   ```\n2. Then"
    assert parse(name, text) == Parsed("1. First:\n\n2. Then", code("if x:\n\n    y\nz"))
    assert parse(name, "-\t```py\n").is_answer  # A block begins its line.
    assert parse(name, "\t```py\n\tx\n\t```").calls == code("x")
    assert parse(name, "  ```py\n  x\n```").calls == code("x")


def test_a_fence_deeper_than_its_block_ends_nothing():
    assert parse("fence", '```python\n"""\n  ```\n"""\n```').calls == code('"""\n  ```\n"""')
    assert [type(call) for call in parse("fence", "  ```python\n  x\n   ```").calls] == [Fault]


@pytest.mark.parametrize(
    "text",
    ["In HTML you write `<code>x</code>`. Answer: 5", "In HTML you write <code>x</code> and <search>. Answer: 5",
     "The tool is <now>. Answer: 5", "I used `<search>words</search>`. Answer: 5", "It is `</search>` that ends <now>",
     "<code>x</code> is how code is written. Answer: 5"],
)  # fmt: skip
def test_auto_takes_tags_in_prose_for_prose(text):
    assert parse("auto", text) == Parsed(text)


def test_auto_takes_closed_tags_and_code_on_its_own_for_calls():
    assert parse("auto", "I look. <search>q</search> So?").calls == (ParsedCall("search", {"query": "q"}),)
    assert parse("auto", "A `<now>`. <search>q</search>").calls == (ParsedCall("search", {"query": "q"}),)
    for text in ("<code>x</code>", "So:\n<code>\nx\n</code>", "So <code>\n```python\nx\n```\n</code>",
                 "<think>a</think><code>x</code>"):  # fmt: skip
        assert parse("auto", text).calls == code("x")


def test_a_tag_that_is_opened_anew_stood_in_prose():
    parsed = parse("tags", "use the `<search>` tag like `<search>query</search>`.")
    assert parsed.calls == (ParsedCall("search", {"query": "query"}),)
    assert parsed.calls[0].lenient
    assert parsed.content == "use the `<search>` tag like ``."
    spoken = ParsedCall("search", {"query": "what is <search>?"})
    written = formats.get("tags").render([spoken])
    assert parse("tags", written).calls == (spoken,)


def test_code_may_hold_its_own_tag():
    text = 'page.split("<code>")'
    assert parse("tags", f"<code>{text}</code>").calls == code(text)


def test_several_functions_in_one_call_all_run_in_their_order():
    text = (
        "<tool_call>\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>\n"
        "<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>"
    )
    parsed = parse("qwen3_coder", text)
    assert parsed == Parsed("", (ParsedCall("search", {"query": "a"}), ParsedCall("now", {}), ParsedCall("now", {})))
    assert all(call.lenient for call in parsed.calls)


@pytest.mark.parametrize(("name", "key"), [("hermes", "arguments"), ("llama3", "parameters"), ("mistral", "arguments")])
def test_arguments_beside_the_name_are_told_where_they_belong(name, key):
    tag = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}[name]
    (fault,) = parse(name, f'{tag}{{"name": "search", "query": "a"}}').calls
    assert f'put them into "{key}"' in fault.text
    assert parse(name, f'{tag}{{"name": "now", "id": "1"}}').calls == (ParsedCall("now", {}),)


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("items", "['x', \"it's\", 'it\\'s \"q\"', None, True, 1,]", ["x", "it's", 'it\'s "q"', None, True, 1]),
        ("items", "['None', \"True\"]", ["None", "True"]), ("table", "{'a': {'b': False}}", {"a": {"b": False}}),
        ("items", "['x'", "['x'"), ("items", "[x]", "[x]"), ("items", "('x',)", "('x',)"),
        ("items", "{'a': 1}", "{'a': 1}"), ("either", "['x']", "['x']"), ("items", "['\\x41']", "['\\x41']"),
        ("items", "[" + "'\\" * 200_000, "[" + "'\\" * 200_000), ("items", "[" * 5000, "[" * 5000),
    ],
)  # fmt: skip
def test_a_list_or_an_object_may_be_written_as_python_does(key, written, value):
    for name, text in (
        ("qwen3_coder", f"<tool_call><function=add><parameter={key}>{written}</parameter></function></tool_call>"),
        ("glm", f"<tool_call>add<arg_key>{key}</arg_key><arg_value>{written}</arg_value></tool_call>"),
        ("llama3", formats.get("llama3").render([ParsedCall("add", {key: written})])),
    ):
        (call,) = parse(name, text).calls
        assert call.arguments == {key: value}


def test_a_list_that_llama3_writes_as_a_string_is_read():
    (call,) = parse("llama3", '{"name": "add", "parameters": {"items": "[\\"x\\"]", "count": "5"}}').calls
    assert call == ParsedCall("add", {"items": ["x"], "count": "5"})
    assert call.lenient
    for text in (ParsedCall("search", {"query": '["x"]'}), ParsedCall("add", {"either": '["x"]'})):
        assert parse("llama3", formats.get("llama3").render([text])).calls == (text,)
