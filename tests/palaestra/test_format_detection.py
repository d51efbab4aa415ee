"""Which format a chat template writes: snippets in the manner of each family, and what must not be mistaken."""

import pytest

from palaestra import formats

SNIPPETS = {
    "hermes": """{%- for call in message.tool_calls %}
        {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
        {{- call.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}<|im_end|>""",
    "qwen3_coder": """{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}
        {%- for key, value in call.arguments|items %}
        {{- '<parameter=' + key + '>\\n' + value + '\\n</parameter>\\n' }}
        {%- endfor %}{{- '</function>\\n</tool_call>' }}""",
    "llama3": """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot_id|>" }}""",
    "harmony": """{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments|tojson + "<|call|>" }}""",
    "mistral": """{{- "[TOOL_CALLS]" + call.name + "[ARGS]" + call.arguments|tojson }}{{ eos_token }}""",
    "deepseek": """{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' + call.arguments
        + '<｜tool▁call▁end｜>'}}""",
    "glm": """{{ '<tool_call>' + call.name }}{% for k, v in call.arguments.items() %}<arg_key>{{ k }}</arg_key>
        <arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>""",
}


@pytest.mark.parametrize("name", list(SNIPPETS))
def test_a_template_tells_its_format(name):
    assert formats.detect(SNIPPETS[name]) == name
    assert formats.get(name)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("""{{ "[TOOL_CALLS] [" }}{{ call.function|tojson }}{{ ', "id": "' + call.id + '"}]' }}""", "mistral"),
        ("{{- '<|python_tag|>' + call.name + '.call(' }}", "llama3"),
        ("", None),
        ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}", None),
        ("<｜DSML｜invoke name=", None),
    ],
)
def test_older_forms_of_a_family_are_known_and_a_template_without_calls_tells_none(template, name):
    assert formats.detect(template) == name


def test_comments_do_not_count():
    other = "{#- unlike [TOOL_CALLS] or <|channel|>...<|call|> #}"
    assert formats.detect(other + SNIPPETS["hermes"] + other) == "hermes"
    assert formats.detect("{# <tool_call> arguments #}") is None
    assert formats.detect("{# never closed " + SNIPPETS["glm"]) == "glm"
