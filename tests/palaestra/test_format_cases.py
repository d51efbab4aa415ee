"""What each call format makes of a turn, as tables: the turn, what is said in it, and its calls.

The kinds of case are those that servers test their parsers with: no call, one, several, none of the arguments, text
around, nested and escaped values, markup and closing tags inside a value, cut and malformed turns. What holds for all
formats is in test_formats.py.
"""

import json

import pytest
from format_helpers import schema

from palaestra import UsageError, formats
from palaestra.formats import CallParseError, Parsed, ParsedCall
from palaestra.formats.scanning import MAX_CALLS, MAX_NAME

TEXT, COUNT = {"type": "string"}, {"type": "integer"}
WEATHER = schema(
    "weather", ["city"], city=TEXT, days=COUNT, scale={"type": "number"}, exact={"type": "boolean"},
    tags={"type": "array"}, table={"type": "object"}, note={"anyOf": [TEXT, {"type": "null"}]},
    either={"anyOf": [COUNT, TEXT]}, pick={"enum": [1, 2]}, loop={"$ref": "#/$defs/Loop"},
    maybe={"type": ["integer", "null"]}, loose={"anyOf": [{"type": "array"}, TEXT]},
)  # fmt: skip
TOOLS = (WEATHER, schema("search", query=TEXT), schema("python", code=TEXT), schema("now"))
FETCH, RUN = schema("fetch", ["page"], depth=COUNT, page=COUNT), schema("run", ["code"], code=TEXT, timeout=COUNT)
FAULT = "fault"
NOW, A, B, MARKUP = ("now", {}), ("a", {"x": 1}), ("b", {}), '<b>&amp; "x" </tool_call> é\n\t日本'
SO = ("search", {"query": "so"})


def parse(name, text, *tools):
    return formats.get(name).parse(text, tools)


def kinds(parsed):
    return [type(item) for item in parsed.calls]


def read(name, text, tools=TOOLS):
    found = formats.get(name).parse(text, tools)
    return found.content, [
        FAULT if isinstance(item, CallParseError) else (item.name, item.arguments) for item in found.calls
    ]


def tagged(body):
    return f"<tool_call>{body}</tool_call>"


def function(name, *values):
    lines = [f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values]
    return f"<function={name}>\n{''.join(lines)}</function>\n"


def pairs(*values):
    return "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values)


def channel(recipient, body, end="<|call|>"):
    return f"<|channel|>commentary to=functions.{recipient} <|constrain|>json<|message|>{body}{end}"


def special(body):
    return f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"


JSON_A, JSON_B = '{"name": "a", "parameters": {"x": 1}}', '{"name": "b", "parameters": {}}'
NEXT = "<|start|>assistant"
CASES = {
    "hermes": [
        (f'Sure.{tagged("""{"name": "a", "arguments": {"x": 1}}""")} Then', "Sure. Then", [A]),
        (tagged('\n{"name": "b", "arguments": {}}\n') + "\n" + tagged('{"name":"b"}'), "", [B, B]),
        (tagged('{"name": "é", "arguments": {"a": {"b": [{"c": [null, true, -1.5e3]}]}}}'), "",
         [("é", {"a": {"b": [{"c": [None, True, -1500.0]}]}})]),
        (tagged('{"name": "a", "arguments": {"x": 0, "x": 1}}'), "", [A]),
        (tagged('{"name": "p", "arguments": {"code": "a\nb"}}'), "", [("p", {"code": "a\nb"})]),
        ('so <tool_call>{"name": "b"}\n', "so", [B]),
        ('so <tool_call>{"name": "b", "argu', "so", [FAULT]),
        *((tagged(body), "", [FAULT]) for body in (
            '{"name": ""}', '{"name": 3}', "[]", "[1, 2]", "null", '"x"', '{"name": "p", "arguments": [1]}', "", "{",
            '{"name": "p", "arguments": "[1"}', '{"name": "p", "arguments": "\\"{}\\""}', '{"name": "p"} x',
            '{"name": "p", "arguments": {"a": 1e999}}',
            '{"name": "p", "arguments": {"a": NaN}}', '{"name": "search", "query": "a"}', "search(query='a')",
            "{'name': 'search'}", "search")),
        (f'{tagged("""{"name": "b"}""")}<tool_call>{{</tool_call>{tagged("""{"name": "b"}""")}<tool_call>', "",
         [B, FAULT, B, FAULT]),
        ("x</tool_call>", "x", [FAULT]),
    ],
    "qwen3_coder": [
        ("I look." + tagged("\n" + function("search", ("query", "so"))), "I look.", [SO]),
        (tagged(function("now")) + "\n" + tagged(function("now")), "", [NOW, NOW]),
        (tagged(function("search", ("query", "so")) + function("now") + function("now")), "", [SO, NOW, NOW]),
        ("So.\n" + function("search", ("query", "so")), "So.", [SO]),
        ("So.\n" + function("search", ("query", "so")) + "</tool_call>", "So.", [SO]),
        ("<tool_call><function=search><parameter=query>so</parameter></function></tool_call>", "", [SO]),
        (tagged(function("search", ("query", MARKUP))), "", [("search", {"query": MARKUP})]),
        (tagged(function("search", ("query", "<parameter=a>1</parameter> </parameter> x"))), "",
         [("search", {"query": "<parameter=a>1</parameter> </parameter> x"})]),
        (tagged(function("weather", ("city", "Rome"), ("city", "Bonn"))), "", [("weather", {"city": "Bonn"})]),
        # An unclosed value swallows neither the next argument nor the next call.
        *((f"Hm.{tagged(broken)}{tagged(function('now'))}", "Hm.", [FAULT, NOW]) for broken in (
            "<function=weather>\n<parameter=city>\nBonn\n<parameter=note>\nx\n</parameter>\n</function>\n",
            "<function=weather><parameter=city>Bonn<parameter=days>2</parameter></function>",
            "<function=weather><parameter=city>a</parameter><parameter=note>x<parameter=days>2</parameter></function>",
            "<function=search><parameter=query>x</function>", "{}", "<function=a b></function>", "<function=a>",
            "<function=a>1</function>", "<function=a></function> x ", "now", "<function=>")),
        ("<tool_call><function=search><parameter=query>x\n</function></tool_call>"
         + tagged(function("search", ("query", "so"))), "", [FAULT, SO]),
        ("<tool_call><function=search><parameter=query>x</parameter>", "", [FAULT]),
        ("</tool_call>", "", [FAULT]),
    ],
    "glm": [
        ("I look." + tagged("search\n" + pairs(("query", "so"))), "I look.", [SO]),
        (tagged("now") + tagged("now\n"), "", [NOW, NOW]),
        (tagged(pairs(("query", "so")).join(["search", ""]).replace("\n", "")), "", [SO]),
        (tagged("search\n" + pairs(("query", MARKUP))), "", [("search", {"query": MARKUP})]),
        *((f"{tagged('now')}{tagged(broken)}{tagged('now')}", "", [NOW, FAULT, NOW]) for broken in (
            "", "two words", "a<arg_key>b</arg_key>", "a<arg_value>b</arg_value>", '{"name": "a"}',
            "a<arg_key></arg_key>", "weather<arg_key>city</arg_key><arg_value>Bonn" + pairs(("days", "2")))),
        ("<tool_call>weather" + pairs(("city", "Bonn")), "", [FAULT]),
    ],
    "llama3": [
        *((text, "", [A]) for text in (
            JSON_A, f"<|python_tag|>{JSON_A}<|eom_id|>", f"  {JSON_A}<|eot_id|>", JSON_A.replace("parameters", "args"),
            '{"type": "function", "name": "a", "parameters": {"x": 1}}', '{"parameters": {"x": 1}, "name": "a"}',
            '{"arguments": {"x": 1}, "name": "a", "id": "7"}')),
        *((JSON_A + between + JSON_B + between + JSON_A, "", [A, B, A]) for between in (
            "; ", ";", "\n", "", " ;\n", ", ", "<|python_tag|>", "\n\n ; ")),
        (f"Sure:\n{JSON_A}\nI used {{a}} with {{\"x\": 1}}.", 'Sure:\n\nI used {a} with {"x": 1}.', [A]),
        ('{"name": "now"}', "", [NOW]),
        ('{"name": "b", "type": "function"}', "", [B]),
        # A second call does not run without the first.
        *((f"{first}; {JSON_B}", f"{first}; {JSON_B}", []) for first in (
            f"Here is it: {JSON_A}", '{"name": "a", "parameters": {}, "note": 1}', '{"name": "Bo", "age": 3}', "x{}")),
        ('Look: {"name": "search", "parameters": {"query": "a"}}; {"name": "now", "parameters": {}}',
         'Look: {"name": "search", "parameters": {"query": "a"}}; {"name": "now", "parameters": {}}', [FAULT]),
        ("x}{" + JSON_A, "x}{" + JSON_A, []),
        *((text, text, []) for text in (
            '{"name": "Alice"}', '{"name": "Alice", "id": 3}', '{"name": "Alice", "type": "person"}', '{"a": 1}', "{",
            '{"name": "Bo", "age": 3}', 'It is {"name": "Bo"}.', '{"type": "int"}', '["name"]', '{"parameters": {}}',
            '{"name": 1}', '{"name": ["now"]}')),
        *((text, "", [FAULT]) for text in (
            "<|python_tag|>print(1)", '{"name": "a", "parameters": {', '{"name": 1, "args": {}}',
            '{"name": "a", "parameters": [1]}', '{"name": "a", "parameters": {x}}',
            '<|python_tag|>{"name": "a", "y": 1}', '{"name": "a", "parameters": ' + "[" * 5000)),
        ('{"name": "weather", "parameters": {"tags": "[\\"x\\"]", "days": "5"}}', "",
         [("weather", {"tags": ["x"], "days": "5"})]),
        ('{"name": "search", "parameters": {"query": "[1]"}}', "", [("search", {"query": "[1]"})]),
    ],
    "harmony": [
        ("no channels at all", "no channels at all", []),
        ("<|channel|>analysis<|message|>I call to=functions.no<|end|>" + NEXT + "<|channel|>commentary<|message|>First."
         "<|end|>" + NEXT + channel("search", '{"query": "<|call|>"}'), "First.", [("search", {"query": "<|call|>"})]),
        (channel("search", '\n{"query":\n"so"}\n'), "", [SO]),
        (channel("search", '{"query": "so"}', ""), "", [SO]),
        ("So." + NEXT + channel("now", "{}") + NEXT + channel("now", "{}"), "So.", [NOW, NOW]),
        *((head + '<|message|>{"x": 1}<|call|>', "", [A]) for head in (
            " to=functions.a<|channel|>commentary json", "<|channel|>commentary to=functions.a",
            "<|start|>assistant to=functions.a<|channel|>analysis code", "assistant to=a<|channel|>c")),
        # An empty body that is closed has no arguments; one that is not may have been cut.
        *((channel("now", body, end), "", [NOW]) for body in ("", " \n") for end in ("<|call|>", "<|end|>")),
        (channel("now", "", ""), "", [FAULT]),
        (channel("now", "") + NEXT + "<|channel|>final<|message|>4", "4", [NOW]),
        ("<|channel|>analysis to=python code<|message|>print({1: 2})\n<|call|>", "",
         [("python", {"code": "print({1: 2})\n"})]),
        ("<|channel|>commentary<|message|>pre<|end|><|channel|>analysis<|message|>so<|end|>" + NEXT
         + "<|channel|>final<|message|>42<|return|>", "42", []),
        ("<|channel|>analysis<|message|>never ended", "", []),
        *((broken + NEXT + channel("b", "{}"), "", [FAULT, B]) for broken in (
            "<|channel|>commentary to=functions.f", "<|channel|>c to=functions.f<|message|>{", " to=functions.f",
            "<|channel|>c to=functions.f<|message|>[1]<|call|>", "<|channel|>c to=functions.f<|message|>{} x<|call|>",
            "<|channel|>c to=functions.f<|message|>foo<|call|>")),
    ],
    "mistral": [
        ('So. [TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}, "id": "bbc5b7ede"}, {"name": "b"}]', "So.", [A, B]),
        ('[TOOL_CALLS]a[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', "", [A, B]),
        ('[TOOL_CALLS]a{"x": 1}[TOOL_CALLS]b[ARGS]null', "", [A, B]),
        ('[TOOL_CALLS]a[CALL_ID]123456789[ARGS]{"x": 1}\n[TOOL_CALLS]b{}', "", [A, B]),
        ('[TOOL_CALLS]a[ARGS]{"x": "[TOOL_CALLS]b{} \\"]"}', "", [("a", {"x": '[TOOL_CALLS]b{} "]'})]),
        ('[TOOL_CALLS]{"name": "a", "arguments": {"x": 1}}', "", [A]),
        ('[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, "junk", {"name": "b"}]', "", [A, FAULT, B]),
        ("[THINK][TOOL_CALLS]a[ARGS]{}[/THINK]42", "42", []),
        ("[THINK][TOOL_CALLS]a[ARGS]{}", "", []),
        *((f"[TOOL_CALLS]{body}[TOOL_CALLS]b[ARGS]{{}}", "", [FAULT, B]) for body in (
            "[]", "[1]", "", "[{", "a", "a[ARGS]", "a[ARGS]x", "a[ARGS]{", "a[ARGS][1]", " b c",
            '{"name": "search", "query": "a"}')),
    ],
    "deepseek": [
        ("Hm.<｜tool▁calls▁begin｜>" + special('a<｜tool▁sep｜>{"x": 1}') + special("b<｜tool▁sep｜>{}")
         + "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", "Hm.", [A, B]),
        (special('function<｜tool▁sep｜>a\n```json\n{"x": 1}\n```') + "\n" + special("b<｜tool▁sep｜>{}"), "", [A, B]),
        ('<｜tool▁call▁begin｜>a<｜tool▁sep｜>{"x": 1}', "", [A]),
        (special('a<｜tool▁sep｜>{"x": "``` <｜tool▁call▁end｜>"}'), "", [("a", {"x": "``` <｜tool▁call▁end｜>"})]),
        *((special(body) + special("b<｜tool▁sep｜>{}"), "", [FAULT, B]) for body in (
            "", "a", "a<｜tool▁sep｜>", "a<｜tool▁sep｜>x", "a<｜tool▁sep｜>{", "a b<｜tool▁sep｜>{}",
            "a<｜tool▁sep｜>{} x", "a<｜tool▁sep｜>[]")),
    ],
    "tags": [
        ("<think>hm</think> <search> so </search>", "", [SO]),
        ('<search>{"query": "so"}</search><now></now>', "", [SO, NOW]),
        ("<code>\n```python\nx\n```\n</code><python>\n  a\n  b\n</python>", "",
         [("python", {"code": "x"}), ("python", {"code": "  a\n  b"})]),
        ('<code>page.split("<code>")</code>', "", [("python", {"code": 'page.split("<code>")'})]),
        ("use the `<search>` tag like `<search>so</search>`.", "use the `<search>` tag like ``.", [SO]),
        ("<fetch>1</fetch>", "<fetch>1</fetch>", []),
        ("It is\n<answer> Beijing </answer> I think", "Beijing", []),
        ("<answer>Beijing", "Beijing", []),
        ("<search>so</search><answer>no</answer>", "no", [SO]),
        ("<search>x", "", [FAULT]),
        ("</search>", "", [FAULT]),
        ("<search>x</python>", "x", [FAULT, FAULT]),
    ],
    "fence": [
        ("See.\n```python\nprint(1)\n\n```\nThen?", "See.\n\nThen?", [("python", {"code": "print(1)\n"})]),
        *((f"{opener}\r\nx\n{opener[: opener.index(opener.strip('`'))]}\r\n", "", [("python", {"code": "x"})])
          for opener in ("```Python", "```py", "```python3 title=x", "````python")),
        ("1. First:\n   ```python\n   if x:\n\n       y\n  z\n   ```\n2. Then", "1. First:\n\n2. Then",
         [("python", {"code": "if x:\n\n    y\nz"})]),
        ("\t```py\n\tx\n\t```", "", [("python", {"code": "x"})]),
        ('```python\n"""\n  ```\n"""\n```', "", [("python", {"code": '"""\n  ```\n"""'})]),
        ("  ```python\n  x\n   ```", "", [FAULT]),
        ("```python\nx\n``` y", "", [FAULT]),
        ("-\t```py\n", "-\t```py", []),  # A block begins its line.
        *((text, text, []) for text in ("```json\n{}\n```\n`python` x ```python\n```\npythonic\n```", "```\nx\n```")),
    ],
    "openai": [
        ('{"role": "assistant", "content": "So.", "tool_calls": '
         '[{"function": {"name": "a", "arguments": "{\\"x\\": 1}"}}]}', "So.", [A]),
        ('{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "b", "arguments": ""}}]}', "", [B]),
        ('{"tool_calls": [{"function": {"name": "b"}}, 1]}', "", [B, FAULT]),
        ('{"tool_calls": [{"function"', "", [FAULT]),
        ('{"role": "assistant", "content": "<think>no</think>So."}', "So.", []),
        ('{"role": "assistant", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]}', "42", []),
        ('{"role": "assistant", "content": null, "tool_calls": null}', "", []),
        *((text, text, []) for text in (
            '{"role": "boss"}', '{"content": 1} x', '{"role": "assi', '{"a": {"tool_calls": 1}}')),
    ],
    "auto": [
        ('```python\nx\n```\n<tool_call>{"name": "b"}</tool_call>', "```python\nx\n```", [B]),
        ("<search>so</search>\n```python\nx\n```", "```python\nx\n```", [SO]),
        ("```python\nx\n```\n<search>so</search>", "<search>so</search>", [("python", {"code": "x"})]),
        ("I look. <search>so</search> So?", "I look.  So?", [SO]),
        ("A `<now>`. <search>so</search>", "A `<now>`.", [SO]),
        *((text, before, [("python", {"code": "x"})]) for text, before in (
            ("<code>x</code>", ""), ("So:\n<code>\nx\n</code>", "So:"), ("<think>a</think><code>x</code>", ""),
            ("So <code>\n```python\nx\n```\n</code>", "So"))),
        ("<answer>42</answer>", "42", []),
        *((text, text, []) for text in (
            "In HTML you write `<code>x</code>`. Answer: 5", "I used `<search>words</search>`. Answer: 5",
            "In HTML you write <code>x</code> and <search>. Answer: 5", "It is `</search>` that ends <now>",
            "The tool is <now>. Answer: 5", "<code>x</code> is how code is written. Answer: 5", '{"name": "Alice"}')),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_turn_is_read_as_the_table_says(name):
    for text, content, calls in CASES[name]:
        found = read(name, text)
        assert found[1] == calls, text
        if FAULT not in calls:
            assert found[0] == content, text


VALUES = [
    ("city", "12", "12"), ("city", " null ", " null "), ("city", '"Bonn"', '"Bonn"'), ("city", "", ""),
    ("days", "12", 12), ("days", " 12 ", 12), ("days", "soon", "soon"), ("days", "null", "null"),
    ("days", "[1]", "[1]"), ("days", "1.5", "1.5"), ("days", "9" * 5000, "9" * 5000), ("days", str(2**60), 2**60),
    ("scale", "1.5", 1.5), ("scale", "2", 2), ("exact", "true", True), ("exact", "False", False),
    ("exact", "maybe", "maybe"), ("tags", '["a", 1]', ["a", 1]), ("tags", "a, b", "a, b"), ("maybe", "null", None),
    ("maybe", "3", 3), ("tags", "[" * 5000, "[" * 5000), ("note", "None", None), ("note", "null", None),
    ("note", "nullify", "nullify"), ("note", "12", "12"), ("either", "12", 12), ("either", "12a", "12a"),
    ("either", "[1]", "[1]"), ("pick", "2", 2), ("loop", "{}", {}), ("unknown", "12", "12"),
    # A list or an object may be written as Python does.
    ("tags", "['x', \"it's\", 'it\\'s \"q\"', None, True, 1,]", ["x", "it's", 'it\'s "q"', None, True, 1]),
    ("tags", "['None', \"True\"]", ["None", "True"]), ("table", "{'a': {'b': False}}", {"a": {"b": False}}),
    ("tags", "['x'", "['x'"), ("tags", "[x]", "[x]"), ("tags", "('x',)", "('x',)"), ("loose", "['x']", "['x']"),
    ("tags", "{'a': 1}", "{'a': 1}"), ("tags", "['\\x41']", "['\\x41']"),
    ("tags", "[" + "'\\" * 200_000, "[" + "'\\" * 200_000),
]  # fmt: skip


def test_bare_values_are_typed_by_the_schema_and_stay_text_where_they_do_not_fit():
    for key, written, value in VALUES:
        for name, body in (
            ("qwen3_coder", function("weather", (key, written))),
            ("glm", f"weather{pairs((key, written))}"),
        ):
            ((_, arguments),) = read(name, tagged(body))[1]
            assert arguments == {key: value}
            assert type(arguments[key]) is type(value)
            assert read(name, tagged(body), ())[1] == [("weather", {key: written})]
        if isinstance(value, list | dict) and key in ("tags", "table"):
            assert read("llama3", formats.get("llama3").render([ParsedCall("weather", {key: written})]))[1] == [
                ("weather", {key: value})
            ]


@pytest.mark.parametrize(
    ("name", "opener", "end"),
    [("qwen3_coder", "<parameter=city>", "</parameter>"), ("glm", "<arg_value>", "</arg_value>")],
)
def test_a_value_that_would_not_be_read_back_is_refused_when_written(name, opener, end):
    form = formats.get(name)
    for value in (f"x\n{end}\n</tool_call>", f"x{opener}y", opener * 2 + end):
        with pytest.raises(UsageError, match="cannot write"):
            form.render([ParsedCall("weather", {"city": value})])
    call = ParsedCall("weather", {"city": f"print('{end}', '</tool_call>')\n{opener}{end} x", "days": 2})
    assert form.parse(form.render([call]), TOOLS).calls == (call,)


def test_a_name_that_a_dialect_cannot_carry_is_refused_when_written():
    for name in ("qwen3_coder", "glm", "mistral", "harmony", "deepseek", "tags"):
        for tool in ("", "two words", "a>b", "a" * (MAX_NAME + 1), "a\nb"):
            with pytest.raises(UsageError, match="cannot be written"):
                formats.get(name).render([ParsedCall(tool, {})])


def test_what_took_leniency_is_marked():
    for name, text in (
        ("hermes", '<tool_call>{"name": "b", "arguments": {}}'), ("hermes", tagged('{"name": "b"}')),
        ("qwen3_coder", function("now")), ("qwen3_coder", tagged(function("now") * 2)), ("harmony", channel("now", "")),
        ("mistral", "[TOOL_CALLS]a{}"), ("deepseek", "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{}"),
        ("openai", '{"tool_calls": [{"function": {"name": "b", "arguments": {}}}]}'),
        ("tags", "<search>or <search>so</search>"), ("llama3", '{"name": "weather", "parameters": {"tags": "[1]"}}'),
    ):  # fmt: skip
        assert all(call.lenient for call in formats.get(name).parse(text, TOOLS).calls), text
    exact = channel("now", "{}", ""), special('function<｜tool▁sep｜>a\n```json\n{"x": 1}\n```')
    assert not any(
        parse(name, text).calls[0].lenient for name, text in zip(("harmony", "deepseek"), exact, strict=True)
    )


def test_arguments_beside_the_name_are_told_where_they_belong():
    for name, opener, key in (("hermes", "<tool_call>", "arguments"), ("llama3", "<|python_tag|>", "parameters")):
        (fault,) = parse(name, f'{opener}{{"name": "search", "query": "a"}}').calls
        assert f'put them into "{key}"' in fault.text


def test_a_list_of_calls_is_capped_too():
    text = "[TOOL_CALLS] [" + ", ".join(['{"name": "a"}'] * 100) + "]"
    for turn in (text, text + text):
        assert kinds(parse("mistral", turn)) == [ParsedCall] * MAX_CALLS + [CallParseError]
    many = json.dumps({"tool_calls": [{"function": {"name": "a"}}] * 100})
    assert len(parse("openai", many).calls) == MAX_CALLS + 1


def test_tags_and_fences_pick_the_tool_by_the_schemas():
    assert parse("tags", "<fetch> 3 </fetch>", FETCH).calls == (ParsedCall("fetch", {"page": 3}),)
    assert parse("tags", '<fetch>{"page": 3, "depth": 1}</fetch>', FETCH).calls[0].arguments == {"page": 3, "depth": 1}
    assert parse("tags", "<code>x</code>", FETCH, RUN).calls == (ParsedCall("run", {"code": "x"}),)
    assert parse("fence", "```python\nx\n```", FETCH, RUN).calls == (ParsedCall("run", {"code": "x"}),)
    assert parse("tags", "<search>x</search>", FETCH) == Parsed("<search>x</search>")
    assert parse("tags", "<code>x</code>", FETCH) == Parsed("<code>x</code>")
    assert parse("tags", "<search>x</search><python>y</python><code>z</code>").calls == (
        ParsedCall("search", {"query": "x"}), ParsedCall("python", {"code": "y"}), ParsedCall("python", {"code": "z"})
    )  # fmt: skip


def test_a_fence_grows_around_code_with_fences_and_holds_nothing_but_code():
    text = formats.get("fence").render([ParsedCall("python", {"code": "'''\n````\n'''"})])
    assert text.startswith("`````python\n")
    for arguments in ({"query": "x"}, {"code": 1}, {"code": "x", "timeout": 1}, {"code": "`" * 32}):
        with pytest.raises(UsageError, match="fence"):
            formats.get("fence").render([ParsedCall("python", arguments)])


@pytest.mark.parametrize(
    "tool_calls", [1, [1], [{}], [{"function": 1}], [{"function": {"name": "a", "arguments": "{"}}],
                   [{"function": {"name": 1}}]],
)  # fmt: skip
def test_a_servers_malformed_message_is_a_fault(tool_calls):
    assert kinds(parse("openai", json.dumps({"tool_calls": tool_calls}))) == [CallParseError]


@pytest.mark.parametrize("name", list(formats.FORMATS))
def test_auto_recognizes_every_dialect_by_its_marks(name):
    loose = name in ("tags", "fence", "llama3")  # Their marks may stand in prose, so that surer marks go first.
    call = ParsedCall("python", {"code": "print(1)" if loose else "print('[TOOL_CALLS] <|channel|>')"})
    text = formats.get(name).render([call])
    for before in ("", "<think>maybe <tool_call> or [TOOL_CALLS]</think>", "maybe <tool_call> or [TOOL_CALLS]</think>"):
        assert parse("auto", before + text).calls == (call,)
